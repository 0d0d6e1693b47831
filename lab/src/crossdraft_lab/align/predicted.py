"""The drafter `predicted`: the target's own language model, which reads predicted visual tokens in place of the clip's.

    events -> event encoder -> adapter -> K visual tokens of the target -> the target's language model -> draft

It needs nothing of the target's reading, so it drafts while the target reads the real clip, which then verifies it as
it does any draft. It weighs as much as the target's language model, with a cache of its own: on a device of its own it
is hidden; where it shares the target's weights it shares the device, too.
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
from crossdraft.heads.load import shipped_folder
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import target_fingerprint
from crossdraft.messages import Message, Part
from crossdraft.video.inputs import ClipText, chat_inputs, placeholder_of
from crossdraft_lab.align.load import check_event_model
from crossdraft_lab.align.networks.vision import VisionAdapter, spread
from crossdraft_lab.networks import VISION_ADAPTERS


@dataclass(frozen=True)
class PredictedPrompt:
    """Turns a request into the target's prompt with `count` visual tokens, and the event encoder's inputs.

    Args:
        config, tokenizer: of the target.
        events: makes the event model's inputs.
        kind: of the target's visual features.
        count: of the predicted visual tokens.
        length: tokens of the clip, among which these stand.
        visual: ids that stand for what is visual.
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
        asked = Message("user", (Part("video", "clip"), Part("text", last.text)))  # a clip's place, not its frames
        inputs, _ = chat_inputs(self.config, self.tokenizer, [*said, asked], [clip])
        return inputs["input_ids"][0]


class PredictedPrefill:
    """Predicts the visual tokens that a target reads in place of its own.

    Args:
        target: reads them.
        events: the event model behind its adapter, of which the encoder is used.
        adapter: from that to the target's visual tokens, on the event model's device.
        tokenizer: the target's.

    Raises:
        CrossdraftError: the target reads visual tokens in a way of its own, or the adapter another encoder, or it is of
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
        """The visual tokens of a `PredictedPrompt`'s prompt."""
        return encoded_rows(self.kind, self.predict(encoder_features(self.events, prompt)))

    @torch.inference_mode()
    def predict(self, features: Tensor) -> Tensor:
        """[T, P, S] of the event encoder -> [K, H] visual tokens, as the target takes them.

        Raises:
            CrossdraftError: they are not finite.
        """
        rows = self.adapter.predict(features[None].to(self.adapter.mean))[0].to(self.device, self.dtype)
        if not bool(rows.isfinite().all()):
            raise CrossdraftError("The adapter predicts visual tokens that are not finite; train it anew.")
        return rows


def predicted_target(
    target: Target, events: Target, adapter: VisionAdapter, tokenizer: PreTrainedTokenizerBase
) -> Target:
    """A target of the same network that reads predicted visual tokens; see `PredictedPrefill`."""
    made = PredictedPrefill(target, events, adapter, tokenizer)
    return target.reading(made.prompt, made.encode)


def check_readable(target: Target) -> None:
    """Raise CrossdraftError where a target's visual tokens are more than rows in a line of text."""
    if target.traits.mrope or target.traits.images_whole or not target.traits.takes_encoded:
        raise CrossdraftError(
            f"{type(target.model).__name__} gives visual tokens positions or masks of their own, or encodes as it "
            "reads, so that it cannot read predicted ones; name another drafter, such as event."
        )


def visual_kind(target: Target) -> str:
    """`video`, or `image` of a target that reads a clip as a row of images."""
    return "video" if hasattr(target.model.base_model, "get_video_features") else "image"


def encoder_features(events: Target, prompt: Prompt) -> Tensor:
    """[T, P, S] features of a prompt's events by the event encoder, before projection and pooling."""
    return cast("Any", events.encode(prompt))["video"].last_hidden_state


def encoded_rows(kind: str, rows: Tensor) -> Encoded:
    """Visual tokens [n, H] as a target's encoder would give them."""
    return {kind: BaseModelOutputWithPooling(pooler_output=cast("Any", rows[None]))}


def stretched_positions(ids: Tensor, visual: frozenset[int], places: Tensor, length: int) -> tuple[Tensor, int]:
    """[L] positions of a prompt whose visual tokens have these `places` among `length`, and the offset of later text.

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
    """A target's language model behind an adapter from its folder.

    Args:
        folder: of the adapter.
        target, source: whose network drafts, and what that was loaded from.
        event: the event model, `event` or a folder; only its encoder is used.
        tokenizer: the target's.
        banned, words: as in `IndependentDrafter`.
        packed: as in `load_drafter`, of the event model.

    Raises:
        CrossdraftError: the folder holds no such adapter, or one of another pair; or as `PredictedPrefill`.
    """
    events, adapter = load_vision(folder, target, source, event, packed=packed)
    return IndependentDrafter(predicted_target(target, events, adapter, tokenizer), banned, words=words)


def shipped_vision(source: str) -> Path:
    """The folder of the adapter that is shipped for the reference pair; `source` is what the target was loaded from.

    Raises:
        CrossdraftError: that is another target.
    """
    return shipped_folder("vision_queries", target_fingerprint(source), "predicted:dir=FOLDER")


def load_vision(
    folder: Path, target: Target, source: str, event: str, *, packed: bool = True
) -> tuple[Target, VisionAdapter]:
    """The event model on the target's device, and the adapter from its folder; see `load_predicted_drafter`."""
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
