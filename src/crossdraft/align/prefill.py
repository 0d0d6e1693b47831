"""Speculative prefill: a target that reads predicted visual tokens in place of those of its clip. LOSSY.

    the gate is confident    the tokens of a few key frames, which alone are encoded, at their own positions, and K
                             predicted tokens, spread over the positions of all other frames
    it is not                the whole clip

The gate looks at events alone. What is saved is the encoding of all other frames, and the reading of their tokens; the
decode passes and the cache are smaller, too. A request without events, or about more than one clip, is read whole.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, cast

import torch
from torch import Tensor

from crossdraft.align.gate import PrefillGate, load_gate
from crossdraft.align.networks.vision import VisionConfig, spread
from crossdraft.align.predicted import (
    PredictedPrefill,
    encoded_rows,
    encoder_features,
    load_vision,
    stretched_positions,
)
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Limit, check_settings
from crossdraft.video.clip import FrameSampling, read_clip
from crossdraft.video.inputs import clip_inputs
from crossdraft.video_prompt import VideoPrompt

ROWS = "predicted"  # among the inputs of a prompt: what was predicted
READ_WHOLE = "Read whole"  # how a note begins that says so


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """How much is predicted, and when.

    Args:
        dir: the folder of an adapter on the vision side.
        model: the event model whose encoder it reads.
        frames: key frames that are encoded as ever.
        confidence: share of an answer's tokens that the gate must expect to be the target's own; 0 asks no gate.

    Raises:
        CrossdraftError: a number outside its range.
    """

    dir: Path | None = None
    model: str = "event"
    frames: Annotated[int, Limit("0 or more", lambda value: value >= 0)] = 0
    confidence: Annotated[float, Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)] = 0.0

    def __post_init__(self) -> None:
        check_settings(self, "predicted", "compression")


class SpeculativePrefill(Target):
    """A target that reads what is predicted of its clip, where the gate lets it.

    Raises:
        CrossdraftError: no folder is named, the target reads no clips or has its own way with visual tokens, or as
            `load_vision` and `load_gate`.
    """

    keeps_prefixes = False  # what stands for a clip depends on its events

    def __init__(self, target: Target, settings: PrefillSettings) -> None:
        if settings.dir is None or not isinstance(target.prepare, VideoPrompt):
            raise CrossdraftError(
                "Speculative prefill needs the folder of an adapter, and a target that reads the frames of a clip; "
                "write predicted:dir=FOLDER, or choose another compression."
            )
        super().__init__(
            target.model, self._prepare, target.text, tuple(target.eos), tuple(target.reserved), target.defaults
        )
        self.settings, self._whole = settings, target.prepare
        events, adapter = load_vision(settings.dir, target, target.model.name_or_path or "", settings.model)
        self.predicting = PredictedPrefill(target, events, adapter, target.prepare.tokenizer)
        self._key_frames = self._chosen_frames()
        self.places, self.order = layout(adapter.config, self._key_frames)
        self._gate: PrefillGate | None = None
        if settings.confidence:
            self.gate()  # refused now rather than with the first request

    @property
    def sampling(self) -> FrameSampling:
        """Which frames of a clip the whole target reads."""
        return self._whole.sampling

    def gate(self) -> PrefillGate:
        """The adapter's gate; see `load_gate`."""
        config, folder = self.predicting.adapter.config, self.settings.dir
        if self._gate is None and folder is not None:
            self._gate = load_gate(folder, config.source_frames, config.source_size)
            self._gate.to(self.predicting.events.device)
        return cast("PrefillGate", self._gate)

    def first_threshold(self, loss: float) -> float:
        """Of the gate's confidence, for answers that lose at most `loss` (1 - ROUGE-L) on average over clips.

        See `PrefillGate.threshold`. The gate was calibrated without key frames; with them less is lost.
        """
        return self.gate().threshold(loss)

    def _chosen_frames(self) -> list[int]:
        """Which of the clip's frames are encoded."""
        config, count = self.predicting.adapter.config, self.settings.frames
        frames = config.length // config.tokens
        if count >= frames:
            raise CrossdraftError(f"Of {frames} frames {count} key frames leave nothing to predict; name fewer.")
        return evenly(frames, count) if count else []

    @torch.inference_mode()
    def _prepare(self, request: Request) -> Prompt:
        """The prompt with what is predicted, or with the whole clip."""
        if not _predictable(request):
            return _noted(
                self._whole(request), f"{READ_WHOLE}: it takes one clip with events to predict what it looks like."
            )
        features = self._event_features(request)
        if self.settings.confidence and self._sure(features) < self.settings.confidence:
            return _noted(self._whole(request), f"{READ_WHOLE}: the gate was not confident.")
        ids, shown = self._with_key_frames(request, self.predicting.prompt.ids(request))
        return Prompt(ids, {ROWS: self.predicting.predict(features), **shown})

    @torch.inference_mode()
    def confidence(self, request: Request) -> tuple[float | None, Request]:
        """Which share of the answer's tokens the gate expects to be the target's own; `None` of what is read whole.

        And the request, whose events this target need not encode again.
        """
        if not _predictable(request):
            return None, request
        features = self._event_features(request)
        return self._sure(features), replace(request, event_features=features)

    def _event_features(self, request: Request) -> Tensor:
        """[T, P, S] what the event encoder makes of a request's events."""
        if request.event_features is not None:
            return request.event_features
        events = self.predicting.events
        return encoder_features(events, events.prepare(request))

    def _sure(self, features: Tensor) -> float:
        gate = self.gate()
        return float(gate(features[None].to(gate.mean)))

    def _with_key_frames(self, request: Request, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """A prompt with more placeholders, and the encoder's inputs of the key frames."""
        chosen, config = self._key_frames, self.predicting.adapter.config
        if not chosen:
            return ids, {}
        (clip,) = request.visuals
        frames = read_clip(clip.value, self.sampling)
        if len(frames.times_s) * config.tokens != config.length:
            raise CrossdraftError(
                f"The clip gives {len(frames.times_s)} frames, the adapter stands for "
                f"{config.length // config.tokens}; leave out frames, or train it with this number."
            )
        _, shown = clip_inputs(self.model.config, self._whole.spec, frames.frames[chosen], frames.times_s[chosen])
        visual = torch.isin(ids, torch.tensor(sorted(self.traits.visual_ids))).nonzero().flatten()
        more = ids[visual[0]].expand(len(self.order) - len(visual))
        return torch.cat((ids[: visual[0]], more, ids[visual[0] :])), shown

    @torch.inference_mode()
    def encode(self, prompt: Prompt) -> Encoded:
        """The visual features: predicted ones, and those of key frames between them."""
        if ROWS not in prompt.features:
            return super().encode(prompt)
        rows = prompt.features[ROWS]
        shown = {name: value for name, value in prompt.features.items() if name != ROWS}
        true = [visual_rows(found) for found in super().encode(Prompt(prompt.input_ids, shown)).values()]
        return encoded_rows(self.predicting.kind, torch.cat((rows, *(one.to(rows) for one in true)))[self.order])

    def _positions(self, prompt: Prompt) -> tuple[Tensor | None, int]:
        if ROWS not in prompt.features:
            return super()._positions(prompt)
        length = self.predicting.adapter.config.length
        return stretched_positions(prompt.input_ids, self.traits.visual_ids, self.places, length)


def speculative(target: Target) -> SpeculativePrefill:
    """A target that is known to read what is predicted, such as that of an engine with this `lossy_prefill`.

    Raises:
        CrossdraftError: it reads its clips in another way.
    """
    if not isinstance(target, SpeculativePrefill):
        raise CrossdraftError("This target predicts nothing of its clips; compress it with predicted:dir=FOLDER.")
    return target


def layout(config: VisionConfig, frames: list[int]) -> tuple[Tensor, Tensor]:
    """Where predicted tokens and those of key frames stand among the clip's, in order; no two at one place.

    Predicted tokens keep their order, and are spread over the places that are not a key frame's. So none stands inside
    a key frame, and with no key frame they stand where the adapter was trained to have them.

    Returns:
        [M] their places, rising; [M] which of (predicted, key frames) stands there.

    Raises:
        CrossdraftError: the key frames leave fewer places than there are predicted tokens.
    """
    own = (torch.tensor(frames, dtype=torch.long)[:, None] * config.tokens + torch.arange(config.tokens)).flatten()
    free = torch.ones(config.length, dtype=torch.bool)
    free[own] = False
    others = free.nonzero().flatten()
    if len(others) < config.predicted:
        raise CrossdraftError(
            f"{len(frames)} key frames leave {len(others)} places for {config.predicted} predicted tokens; name fewer."
        )
    places, order = torch.cat((others[spread(config.predicted, len(others))], own)).sort()
    return places, order


def _predictable(request: Request) -> bool:
    clip_alone = request.inputs is None and [part.kind for part in request.visuals] == ["video"]
    return clip_alone and request.events is not None and len(request.conversation) <= 1 + (request.system is not None)


def _noted(prompt: Prompt, note: str) -> Prompt:
    return replace(prompt, notes=(*prompt.notes, note))
