"""Loads an EventGPT as a drafter: its weights, its prompt, and the check of its vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from crossdraft.checkpoints.models import check_event_model
from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter
from crossdraft.drafters.cross_vocab.drafter import cross_vocab_drafter
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, read_token_table
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.recordings import PIXELS, RecordingEncoder, RecordingPrompt, recording_prompt
from crossdraft.drafters.short_head import read_ids, shorten_head
from crossdraft.engine.fast.quantized_linear import bytes_saved
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import (
    Reduction,
    draft_dtype,
    ends_of,
    load_network,
    load_tokenizer,
    reserved_of,
    special_ids,
    token_text,
    vocabulary_of,
)

if TYPE_CHECKING:
    from crossdraft.models.eventgpt import EventGPTProcessor


def load_drafter(
    source: str,
    device: str | None = None,
    dtype: str | None = None,
    banned: Sequence[int] = (),
    vocabulary: dict[str, int] | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
) -> IndependentDrafter:
    """Load an EventGPT as an independent drafter.

    Args:
        source: `event`, `blind` or `foreign` of the reference pair, or the folder of an EventGPT. If the folder holds a
            `draft_ids.json`, a list of token ids, only these are drafted; see `drafters.short_head`.
        device, packed, quantize: as in `load_target`.
        dtype: default bfloat16, but float32 on a CPU that does not multiply bfloat16 itself.
        banned: ids that must never be drafted.
        vocabulary: the target's tokens and ids; every token that the drafter can write must be one of them, at the same
            id. Its own placeholders and other special tokens are never drafted, and may stand anywhere.

    Raises:
        CrossdraftError: as `load_target`, or the vocabularies differ.
    """
    model, tokenizer, folder = event_model(source, device, dtype, packed=packed, quantize=quantize)
    if vocabulary is not None:
        _check_vocabulary(_sayable(model.model, tokenizer), vocabulary, folder)
    return IndependentDrafter(model, banned)


def load_event_drafter(
    source: str,
    target: Callable[[], TokenTable],
    vocabulary: dict[str, int],
    banned: Sequence[int] = (),
    how: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
    slices: int | None = None,
) -> IndependentDrafter | CrossVocabDrafter:
    """Load an EventGPT as an independent drafter, of the target's vocabulary or another.

    Args:
        source, vocabulary, banned, device, dtype, packed, quantize: as in `load_drafter`.
        target: function that reads the target's token table; called where the vocabularies differ or `how` is given.
        how: as in `load_model_drafter`.
        slices: windows of a whole recording; see `drafters.recordings`.

    Raises:
        CrossdraftError: as `load_target`, or `tli` is asked for and no token is shared.
    """
    model, tokenizer, _ = event_model(source, device, dtype, packed=packed, quantize=quantize)
    if slices is not None:
        prompt = RecordingPrompt(cast("EventPrompt", model.prepare).processor, slices)
        model = model.reading(prompt, RecordingEncoder(model, prompt))
    if how is None and not _differing(_sayable(model.model, tokenizer), vocabulary):
        return IndependentDrafter(model, banned)
    own = read_token_table(tokenizer, model.vocab_size, tuple(model.eos), tuple(model.reserved))
    return cross_vocab_drafter(model, own, target(), how or "slem")


def event_model(
    source: str,
    device: str | None,
    dtype: str | None,
    *,
    packed: bool,
    quantize: str | None,
    reduction: Reduction | None = None,
) -> tuple[Target, PreTrainedTokenizerBase, Path]:
    """An EventGPT behind the adapter, its tokenizer and its folder. Without a reduction its LM head is shortened."""
    from crossdraft.models.eventgpt import EventGPTForConditionalGeneration, EventGPTProcessor

    folder = check_event_model(source)
    dtype = dtype or draft_dtype(device)
    if reduction is None and (ids := read_ids(folder)) is not None:
        reduction = Reduction(partial(shorten_head, ids=ids), lambda model: bytes_saved(model, quantize))
    kind = EventGPTForConditionalGeneration
    model = load_network(kind, folder, device, dtype, packed=packed, quantize=quantize, reduction=reduction)
    processor = EventGPTProcessor.from_pretrained(folder)
    tokenizer = processor.tokenizer
    eos, reserved = ends_of(model, tokenizer), reserved_of(model, tokenizer)
    return Target(model, EventPrompt(processor), token_text(tokenizer), eos, reserved), tokenizer, folder


def check_event_drafter(source: str, target: str) -> None:
    """Raise CrossdraftError unless `source` is an EventGPT with the target's vocabulary; only tokenizers are read.

    Args:
        source: as in `load_drafter`.
        target: as in `load_target`.
    """
    folder = check_event_model(source)
    tokenizer = load_tokenizer(folder)
    end: Any = tokenizer.eos_token_id
    placeholders = special_ids(tokenizer) - {end}
    own = {token: i for token, i in tokenizer.get_vocab().items() if i not in placeholders}
    _check_vocabulary(own, vocabulary_of(target), folder)


@dataclass(frozen=True)
class EventPrompt:
    """Turns a request into the inputs of an EventGPT. A text-only control gets blank frames.

    Of a recording only the window that the model was made for is read (`EventGPTProcessor.window`), from its end; an
    `Excerpt` says otherwise.
    """

    processor: "EventGPTProcessor"

    def __call__(self, request: Request) -> Prompt:
        ids = torch.tensor(self.processor.prompt_ids(request.question))

        def pixels() -> tuple[dict[str, Tensor], tuple[str, ...]]:
            window = self._blank() if self.processor.options.blind else self._window(request)
            parts = window if isinstance(window, tuple) else (window,)
            notes = dict.fromkeys(note for part in parts for note in getattr(part, "notes", ()))
            return {PIXELS: self.processor.pixels(window)[None]}, tuple(notes)

        return recording_prompt(request, ids, (PIXELS,), pixels)

    def _window(self, request: Request) -> Any:
        from crossdraft.events import Events, Excerpt

        events, size = request.events, self.processor.window
        if events is None:
            raise CrossdraftError(
                "The request has no event recording (`events`), which the drafter reads; give one, or name a "
                "drafter that needs none, such as union:memory,ngram."
            )
        if isinstance(events, str | Path):
            events = Excerpt(Path(events))
        if isinstance(events, Excerpt):
            return events.read_windows(size)
        if isinstance(events, Events):
            return size.of(events)
        if not isinstance(events, np.ndarray | Tensor):
            raise CrossdraftError(
                f"The event recording (`events`) is of type {type(events).__name__}; give a path, "
                "an Excerpt, Events, or frames."
            )
        return events

    def _blank(self) -> Tensor:
        size = self.processor.config.vision_config.image_size
        return torch.full((self.processor.config.num_event_frames, size, size, 3), 255, dtype=torch.uint8)


def _sayable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The ids of all tokens of a model that are not reserved: those that it can write as text, and the end."""
    reserved = set(reserved_of(model, tokenizer))
    return {token: i for token, i in tokenizer.get_vocab().items() if i not in reserved}


def _check_vocabulary(drafter: dict[str, int], target: dict[str, int], folder: Path) -> None:
    """Raise CrossdraftError unless every token that the drafter can write has the same id in the target."""
    differing = _differing(drafter, target)
    if differing:
        raise CrossdraftError(
            f"The drafter {folder} has another vocabulary than the target: {len(differing)} of its {len(drafter)} "
            f"tokens differ, '{differing[0]}' for one; name a drafter that fits every target, such as "
            "union:memory,ngram, an event model by itself (event:dir=FOLDER), or pair models that share a tokenizer."
        )


def _differing(drafter: dict[str, int], target: dict[str, int]) -> list[str]:
    """The tokens of a drafter that are not the target's at the same id."""
    return [token for token, i in drafter.items() if target.get(token) != i]
