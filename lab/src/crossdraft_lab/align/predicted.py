"""The drafter `predicted`: the target's own language model, which reads predicted visual tokens in place of the clip's.

    events -> event encoder -> adapter -> K visual tokens of the target -> the target's language model -> draft

It needs nothing that the target computes, so it drafts while the target reads the real clip; the target then verifies
the draft as any other. It costs as much as the target's language model, with a cache of its own: on a device of its
own it is hidden; where it shares the target's weights it also shares the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import load_head, read_config
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import target_fingerprint
from crossdraft.messages import Message, Part
from crossdraft.video.inputs import ClipText, chat_inputs, placeholder_of
from crossdraft_lab.align.load import check_event_model
from crossdraft_lab.align.networks.vision import VisionAdapter, spread
from crossdraft_lab.networks import VISION_ADAPTERS, shipped_folder


@dataclass(frozen=True)
class PredictedPrompt:
    """Converts a request into the target's prompt with `count` visual tokens, and the event encoder's inputs.

    Args:
        config, tokenizer: configuration and tokenizer of the target.
        events: function that makes the event model's inputs.
        kind: kind of the target's visual features, `video` or `image`.
        count: number of predicted visual tokens.
        length: number of visual tokens of the whole clip, over which the predicted ones are spread.
        visual: ids of visual placeholders.
    """

    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    events: Callable[[Request], Prompt]
    kind: str
    count: int
    length: int
    visual: frozenset[int]

    def __call__(self, request: Request) -> Prompt:
        seen, ids = self.events(request), self.ids(request)
        positions = stretched_positions(ids, self.visual, spread(self.count, self.length), self.length)
        return Prompt(ids, seen.features, seen.notes, positions=lambda _: positions)

    def ids(self, request: Request) -> Tensor:
        """Token ids [L] of the prompt alone; visual content of earlier messages is not predicted."""
        clip = ClipText(placeholder_of(self.config, self.kind), self.count, self.kind)
        *before, last = request.conversation
        said = [Message(one.role, (Part("text", one.text),)) for one in before]
        asked = Message("user", (Part("video", "clip"), Part("text", last.text)))  # without frames
        inputs, _ = chat_inputs(self.config, self.tokenizer, [*said, asked], [clip])
        return inputs["input_ids"][0]


class PredictedPrefill:
    """Predicts the visual tokens that a target reads in place of its own.

    Args:
        target: target that reads the tokens.
        events: event model behind its adapter; only its encoder is used.
        adapter: predicts the target's visual tokens from the encoder's features, on the event model's device.
        tokenizer: tokenizer of the target.

    Raises:
        CrossdraftError: the target reads visual tokens in an unsupported way, or the adapter is for another encoder or
            another target.
    """

    def __init__(
        self, target: Target, events: Target, adapter: VisionAdapter, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        check_readable(target)
        config, vision = adapter.config, cast("Any", events.model.config).vision_config
        size = target.text_config.hidden_size
        if config.hidden_size != size:
            raise CrossdraftError(
                f"The adapter predicts visual tokens of {config.hidden_size} features, this target reads {size}; train "
                "one for this target."
            )
        if config.source_size != vision.hidden_size:
            raise CrossdraftError(
                f"The adapter reads {config.source_size} features of an event encoder, this one has "
                f"{vision.hidden_size}; train one for this event model."
            )
        self.kind, self.events, self.adapter = visual_kind(target), events, adapter.eval()
        self.device, self.dtype = target.device, target.model.dtype
        own, visual, count = target.model.config, target.traits.visual_ids, config.predicted
        self.prompt = PredictedPrompt(own, tokenizer, events.prepare, self.kind, count, config.length, visual)

    def encode(self, prompt: Prompt) -> Encoded:
        """Predict the visual tokens of a prompt that a `PredictedPrompt` made."""
        return encoded_rows(self.kind, self.predict(encoder_features(self.events, prompt)))

    @torch.inference_mode()
    def predict(self, features: Tensor) -> Tensor:
        """Predict the target's visual tokens [K, H] from features [T, P, S] of the event encoder.

        Raises:
            CrossdraftError: the predicted tokens are not finite.
        """
        rows = self.adapter.predict(features[None].to(self.adapter.mean))[0].to(self.device, self.dtype)
        if not bool(rows.isfinite().all()):
            raise CrossdraftError("The adapter predicts visual tokens that are not finite; train it anew.")
        return rows


def predicted_target(
    target: Target, events: Target, adapter: VisionAdapter, tokenizer: PreTrainedTokenizerBase
) -> Target:
    """Make a target of the same network that reads predicted visual tokens; see `PredictedPrefill`."""
    made = PredictedPrefill(target, events, adapter, tokenizer)
    return target.reading(made.prompt, made.encode)


def check_readable(target: Target) -> None:
    """Raise CrossdraftError if a target's visual tokens are more than rows in a line of text."""
    if target.traits.mrope or target.traits.blocks or not target.traits.takes_encoded:
        raise CrossdraftError(
            f"{type(target.model).__name__} gives visual tokens positions or masks of their own, or encodes as it "
            "reads, so that it cannot read predicted ones; name another drafter, such as event."
        )


def visual_kind(target: Target) -> str:
    """Return `video`, or `image` for a target that reads a clip as a row of images."""
    return "video" if hasattr(target.model.base_model, "get_video_features") else "image"


def encoder_features(events: Target, prompt: Prompt) -> Tensor:
    """Compute features [T, P, S] of a prompt's events by the event encoder, before projection and pooling."""
    return cast("Any", events.encode(prompt))["video"].last_hidden_state


def encoded_rows(kind: str, rows: Tensor) -> Encoded:
    """Wrap visual tokens [n, H] in the form that a target's encoder returns."""
    return {kind: BaseModelOutputWithPooling(pooler_output=cast("Any", rows[None]))}


def stretched_positions(ids: Tensor, visual: frozenset[int], places: Tensor, length: int) -> tuple[Tensor, int]:
    """Positions [L] of a prompt whose visual tokens have `places` among `length`, and the offset of later text.

    >>> stretched_positions(torch.tensor([7, 9, 9, 8]), frozenset({9}), torch.tensor([2, 6]), 8)
    (tensor([0, 3, 7, 9]), 6)
    """
    shown = torch.tensor([token in visual for token in ids.tolist()])
    first, count = int(shown.int().argmax()), len(places)
    positions = torch.arange(len(ids))
    positions[first + count :] += length - count
    positions[first : first + count] = first + places
    return positions, length - count


def load_predicted_drafter(
    folder: Path,
    target: Target,
    source: str,
    event: str,
    tokenizer: PreTrainedTokenizerBase,
    banned: Sequence[int] = (),
    *,
    words: int = 1,
    packed: bool = True,
) -> IndependentDrafter:
    """Load a drafter of the target's language model with an adapter from its folder.

    Args:
        folder: folder of the adapter.
        target, source: target whose network drafts, and the name or folder that it was loaded from.
        event: the event model, `event` or a folder; only its encoder is used.
        tokenizer: tokenizer of the target.
        banned, words: as in `IndependentDrafter`.
        packed: setting of the event model, as in `load_drafter`.

    Raises:
        CrossdraftError: the folder holds no such adapter, or one for another pair; or as `PredictedPrefill`.
    """
    events, adapter = load_vision(folder, target, source, event, packed=packed)
    return IndependentDrafter(predicted_target(target, events, adapter, tokenizer), banned, words=words)


def shipped_vision(source: str) -> Path:
    """Folder of the adapter shipped for the reference pair; `source` is the name or folder of the loaded target.

    Raises:
        CrossdraftError: `source` is another target.
    """
    return shipped_folder("vision_queries", target_fingerprint(source), "predicted:dir=FOLDER")


def load_vision(
    folder: Path, target: Target, source: str, event: str, *, packed: bool = True
) -> tuple[Target, VisionAdapter]:
    """Load the event model on the target's device, and the adapter; see `load_predicted_drafter`."""
    found = read_config(folder)
    if found.network not in VISION_ADAPTERS:
        raise CrossdraftError(
            f"{folder} holds a head of the network '{found.network}', not an adapter on the vision side "
            f"({', '.join(VISION_ADAPTERS)})."
        )
    adapter = cast("VisionAdapter", load_head(folder, SharedWeights.of(target.model), target_fingerprint(source)))
    check_event_model(adapter.config.drafter, event, folder)
    events = load_drafter(event, str(target.device), packed=packed).model
    return events, adapter.to(events.device)
