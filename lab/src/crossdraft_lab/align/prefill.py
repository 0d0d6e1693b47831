"""Speculative prefill: a target that reads predicted visual tokens in place of those of its clip. LOSSY.

    the gate is confident    the tokens of some key frames, the only ones encoded, at their own positions, and K
                             predicted tokens, spread over the positions of all other frames
    otherwise                the whole clip

The gate reads events alone. A speculative prefill saves the encoding of all other frames, and the reading of their
tokens; decode passes and cache are smaller, too. A request is read whole if it has no events or more than one clip, if
its events cannot be read or lie at an edge, or, with key frames, if its clip gives another number of frames than the
clips that the adapter was trained on.

The gate's threshold is fixed, or set by a controller, which keeps a quality budget by checks on a sample of requests:
see `align.checked`. A checked request is read whole; the caller is told so by a note, and runs the check.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, cast

import torch
from torch import Tensor

from crossdraft.compressions import CHECK, READ_WHOLE, BudgetStatus, checked_by
from crossdraft.edge.events import EdgeEvents
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.scheduler import Scheduler
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Limit, Share, check_settings
from crossdraft.video.clip import FrameSampling, count_frames, read_clip
from crossdraft.video.inputs import clip_inputs
from crossdraft.video_prompt import VideoPrompt
from crossdraft_lab.align.checked import PrefillController, QualityBudget, Read
from crossdraft_lab.align.gate import PrefillGate, load_gate
from crossdraft_lab.align.networks.vision import VisionConfig, spread
from crossdraft_lab.align.predicted import (
    PredictedPrefill,
    encoded_rows,
    encoder_features,
    load_vision,
    shipped_vision,
    stretched_positions,
)

if TYPE_CHECKING:
    from crossdraft_lab.align.prefill_check import PrefillCheck

ROWS = "predicted"  # key of the predicted tokens among a prompt's inputs
EVENTS = "event features"  # key in a request's extras: [T, P, S] event encoder features
NOT_PREDICTABLE = "it takes one clip with events to predict what it looks like"
AT_AN_EDGE = "its events lie at an edge, and are not sent"
UNREADABLE = "its events cannot be read"
NOT_CONFIDENT = "the gate was not confident"
CHECKED = "this request is a check"


FromNoneToAll = Annotated[float, Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """Settings of a speculative prefill.

    Args:
        dir: folder of an adapter on the vision side; by default the one shipped for the reference pair.
        model: the event model whose encoder it reads.
        frames: number of key frames, which are encoded as usual.
        confidence: share of an answer's tokens that the gate must expect to be the target's own; 0 = no gate. With a
            budget this is the initial threshold, and 0 starts at `PrefillGate.threshold`.
        budget: largest mean loss of answers, 1 - ROUGE-L; with it requests are checked, and the threshold moves.
        check, rate: see `QualityBudget`.

    Raises:
        CrossdraftError: a number outside its range, or checks without a budget.
    """

    dir: Path | None = None
    model: str = "event"
    frames: Annotated[int, Limit("0 or more", lambda value: value >= 0)] = 0
    confidence: FromNoneToAll = 0.0
    budget: FromNoneToAll | None = None
    check: Share | None = None
    rate: Share | None = None

    def __post_init__(self) -> None:
        check_settings(self, "predicted", "compression")
        if self.budget is None and (self.check, self.rate) != (None, None):
            raise CrossdraftError(
                "The compression 'predicted' checks requests to keep a budget, and none is named; write budget=0.05, "
                "or leave out check and rate."
            )

    @property
    def quality(self) -> QualityBudget | None:
        """The budget with its checks; `None` = no checks."""
        if self.budget is None:
            return None
        default = QualityBudget(self.budget)
        return replace(default, check=self.check or default.check, rate=self.rate or default.rate)


class Checker(Protocol):
    """Runs the check of one request; the request's `extras` hold it under `CHECK`."""

    def start(self, prepared: Request) -> None:
        """Start the check of a chosen request; called once, while the prompt is prepared."""


class SpeculativePrefill:
    """Converts a request into a prompt with predicted tokens, where the gate allows it, and encodes the prompt.

    `controller` keeps the budget; `None` = there is none. It decides for requests whose `extras` hold a `Checker` as
    `CHECK`, except those without a namespace, from which nothing is learned. `CHECK` may also hold the way to read the
    request (`Read`). Any other request is decided by the present threshold.

    Raises:
        CrossdraftError: the target reads no clips, or reads visual tokens in an unsupported way; or as
            `load_vision` and `load_gate`.
    """

    def __init__(self, target: Target, settings: PrefillSettings) -> None:
        if not isinstance(target.prepare, VideoPrompt):
            raise CrossdraftError(
                "Speculative prefill needs a target that reads the frames of a clip; choose another compression."
            )
        self.settings, self._target, self._whole = settings, target, target.prepare
        self.folder = settings.dir or shipped_vision(target.source)
        events, adapter = load_vision(self.folder, target, target.source, settings.model)
        self.predicting = PredictedPrefill(target, events, adapter, target.prepare.tokenizer)
        self._clip_frames = adapter.config.length // adapter.config.tokens  # frames of a clip
        self._key_frames = self._chosen_frames()
        self.places, self.order = layout(adapter.config, self._key_frames)
        self._gate: PrefillGate | None = None
        self.controller: PrefillController | None = None
        if settings.confidence or settings.quality is not None:
            self.gate()  # errors are raised now, not with the first request
        if (budget := settings.quality) is not None:
            self.controller = PrefillController(budget, settings.confidence or self.gate().threshold(budget.loss))

    @property
    def sampling(self) -> FrameSampling:
        """Frames of a clip that the whole target reads."""
        return self._whole.sampling

    def gate(self) -> PrefillGate:
        """Load the adapter's gate once; see `load_gate`."""
        if self._gate is None:
            config = self.predicting.adapter.config
            self._gate = load_gate(self.folder, config.source_frames, config.source_size)
            self._gate.to(self.predicting.events.device)
        return self._gate

    @property
    def status(self) -> BudgetStatus | None:
        """State of the budget; `None` without a budget."""
        return None if self.controller is None else self.controller.status

    def check_of(self, request: Request, scheduler: Scheduler) -> "PrefillCheck | None":
        """Create the check of a request that the scheduler is to answer; `None` without a budget."""
        from crossdraft_lab.align.prefill_check import PrefillCheck

        if self.controller is None:
            return None
        return PrefillCheck(self.controller, request, partial(scheduler.submit, counted=False))

    def _chosen_frames(self) -> list[int]:
        """Indices of the clip's frames that are encoded."""
        frames, count = self._clip_frames, self.settings.frames
        if count >= frames:
            raise CrossdraftError(f"Of {frames} frames {count} key frames leave nothing to predict; name fewer.")
        return evenly(frames, count) if count else []

    @torch.inference_mode()
    def __call__(self, request: Request) -> Prompt:
        """Prepare the prompt with predicted tokens, or with the whole clip."""
        if (why := self._unpredictable_because(request)) is not None:
            return self._read_unpredictable(request, why)
        try:
            request = replace(request, extras={**request.extras, EVENTS: self._event_features(request)})
        except CrossdraftError as error:  # its text may name a file, which a server hides: a separate note
            return self._read_unpredictable(request, UNREADABLE, str(error))
        if (why := self._whole_because(request)) is not None:
            return self._read_whole(request, why)
        ids, shown = self._with_key_frames(request, self.predicting.prompt.ids(request))
        rows, length = self.predicting.predict(self._event_features(request)), self.predicting.adapter.config.length
        positions = stretched_positions(ids, self._target.traits.visual_ids, self.places, length)
        return Prompt(ids, {ROWS: rows, **shown}, positions=lambda _: positions)

    def _unpredictable_because(self, request: Request) -> str | None:
        """Reason that nothing can be predicted for a request, known before its events are read; `None` if none."""
        if not _predictable(request):
            return NOT_PREDICTABLE
        if isinstance(request.events, EdgeEvents):
            return AT_AN_EDGE
        if (
            not self._key_frames
            or (found := count_frames(request.visuals[0].value, self.sampling)) == self._clip_frames
        ):
            return None
        return f"its clip gives {found} frames, and the adapter learned of {self._clip_frames}"

    def _read_unpredictable(self, request: Request, why: str, *notes: str) -> Prompt:
        """Prepare the prompt of a request for which nothing can be predicted, and count the request."""
        if self.controller is not None and _counts(request):
            self.controller.count_unpredictable()
        return self._read_whole(request, why, *notes)

    def _read_whole(self, request: Request, why: str, *notes: str) -> Prompt:
        """Prepare the prompt with the whole clip, with a note on the reason."""
        prompt = self._whole(request)
        return replace(prompt, notes=(*prompt.notes, f"{READ_WHOLE}: {why}.", *notes))

    def _whole_because(self, request: Request) -> str | None:
        """Reason to read a request's whole clip, known after its events are encoded; `None` to predict."""
        controller, least, asker = self.controller, self.settings.confidence, request.extras.get(CHECK)
        if isinstance(asker, Read) or (controller is None and not least):
            return CHECKED if asker is Read.WHOLE else None
        sure = self._sure(self._event_features(request))
        if controller is None:
            return NOT_CONFIDENT if sure < least else None
        read = controller.choose(sure) if _counts(request) else controller.would_read(sure)
        if read is Read.CHECKED:
            cast("Checker", asker).start(request)
        return {Read.PREDICTED: None, Read.CHECKED: CHECKED, Read.WHOLE: NOT_CONFIDENT}[read]

    def _event_features(self, request: Request) -> Tensor:
        """Features [T, P, S] of a request's events by the event encoder."""
        if (known := request.extras.get(EVENTS)) is not None:
            return cast("Tensor", known)
        events = self.predicting.events
        return encoder_features(events, events.prepare(request))

    def _sure(self, features: Tensor) -> float:
        gate = self.gate()
        return float(gate(features[None].to(gate.mean)))

    def _with_key_frames(self, request: Request, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Add placeholders for key frames to a prompt, and return the encoder's inputs for these frames."""
        if not (chosen := self._key_frames):
            return ids, {}
        clip = read_clip(request.visuals[0].value, FrameSampling(self._clip_frames))
        frames, times = clip.frames[chosen], clip.times_s[chosen]
        _, shown = clip_inputs(self._target.model.config, self._whole.spec, frames, times)
        visual = torch.isin(ids, torch.tensor(sorted(self._target.traits.visual_ids))).nonzero().flatten()
        more = ids[visual[0]].expand(len(self.order) - len(visual))
        return torch.cat((ids[: visual[0]], more, ids[visual[0] :])), shown

    def encode(self, prompt: Prompt) -> Encoded:
        """Encode the visual features: predicted ones, with those of key frames between them."""
        if ROWS not in prompt.features:
            return self._target.encode(prompt)
        rows = prompt.features[ROWS]
        shown = {name: value for name, value in prompt.features.items() if name != ROWS}
        true = [visual_rows(found) for found in self._target.encode(Prompt(prompt.input_ids, shown)).values()]
        return encoded_rows(self.predicting.kind, torch.cat((rows, *(one.to(rows) for one in true)))[self.order])


def speculative_target(target: Target, settings: PrefillSettings) -> Target:
    """Return a target that reads predicted features of a clip if the gate allows it; errors as `SpeculativePrefill`."""
    made = SpeculativePrefill(target, settings)
    return target.reading(made, made.encode)


def speculative(target: Target) -> SpeculativePrefill:
    """Return the speculative prefill of a target, such as that of an engine with this `lossy_prefill`.

    Raises:
        CrossdraftError: the target reads its clips in another way.
    """
    made = checked_by(target)
    if not isinstance(made, SpeculativePrefill):
        raise CrossdraftError("This target predicts nothing of its clips; compress it with predicted:dir=FOLDER.")
    return made


def layout(config: VisionConfig, frames: list[int]) -> tuple[Tensor, Tensor]:
    """Compute the places of predicted tokens and key frames among the clip's tokens, in order; no two share one.

    Predicted tokens keep their order, and are spread over the places outside key frames. So none lies inside a key
    frame, and without key frames they have the places of the training.

    Returns:
        [M] places, rising; [M] index of the token at each place, among (predicted tokens, key frames).

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


def _counts(request: Request) -> bool:
    """True if the status counts a request: not one without an engine, a check or a warm-up."""
    asker = request.extras.get(CHECK)
    return asker is not None and not isinstance(asker, Read) and request.namespace is not None


def _predictable(request: Request) -> bool:
    clip_alone = request.inputs is None and [part.kind for part in request.visuals] == ["video"]
    one_turn = [one.role for one in request.conversation if one.role != "system"] == ["user"]
    return clip_alone and request.events is not None and one_turn
