"""A way of training heads: the head's host model, its training data, and the measurement of the result."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.load import event_folder, vocabulary_of
from crossdraft_lab.objective import LOSS_POSITIONS, PREFIXES
from crossdraft_lab.train.capture.overlap import refuse_overlap
from crossdraft_lab.train.capture.sources import ClipSource, SceneSource, source_of
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, MicroBatch, MicroLoss, merge_losses
from crossdraft_lab.train.core.finite import require_finite
from crossdraft_lab.train.core.recipe import Optim
from crossdraft_lab.train.heads.clip_features import clip_events
from crossdraft_lab.train.heads.measure import figures_json, measure_hidden
from crossdraft_lab.train.heads.recipe import HeadRecipe, Measure

CHECKED = 8  # batches of a validation check
LONGEST = 96  # tokens of an answer that is measured
Check = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True)
class TaskInputs:
    """Inputs of the training of a head.

    Args:
        recipe: settings of the training.
        target: model whose answers are learned.
        source: name or folder that the target was loaded from.
        fingerprint: fingerprint of the target's weights.
        event: event model of heads that belong to one: `event`, or a folder.
        store: capture to learn from.
        validation: capture of other clips, for checks and the final measurement.
        online: number of scenes to ask the target about, where there is no capture.
    """

    recipe: HeadRecipe
    target: Target
    source: str
    fingerprint: str
    event: str
    store: CaptureStore | None
    validation: CaptureStore | None
    online: int

    @property
    def questions(self) -> int:
        """Number of questions about validation clips that the finished head is measured with."""
        return 0 if self.validation is None else min(self.recipe.measure.pairs, len(self.validation))

    def captured(self, refusal: str) -> CaptureStore:
        """Return the capture, for heads that can learn only from one.

        Raises:
            CrossdraftError: there is no capture; the message begins with `refusal`.
        """
        if self.store is None:
            raise CrossdraftError(f"{refusal}; give --capture FOLDER instead of --online.")
        return self.store


@dataclass(frozen=True)
class TaskData:
    """Training and validation data of a head.

    Args:
        loss_of: the loss of a step's micro-batch.
        describe: describes the data of a step in words.
        check: validation; `None` = there is no validation data.
    """

    loss_of: LossFn
    describe: Callable[[int], str]
    check: Check | None


def load_event_model(inputs: TaskInputs, device: str = "cpu") -> Target:
    """Load the event model that a head belongs to, in float32.

    Raises:
        CrossdraftError: it cannot draft for the target, or one of its weights is NaN or infinite.
    """
    reserved, vocabulary = tuple(sorted(inputs.target.reserved)), vocabulary_of(inputs.source)
    found = load_drafter(inputs.event, device, "float32", reserved, vocabulary, packed=False).model
    require_finite(cast("Any", found.model), f"the drafter {event_folder(inputs.event)}")
    return found


class HeadTask(ABC):
    """Training of one head; the base class trains heads on the target itself."""

    in_one_piece = False  # true if a step's batch cannot be divided among passes or processes

    def __init__(self, inputs: TaskInputs) -> None:
        self.inputs = inputs

    @property
    def host(self) -> Target:
        """Model that the head belongs to: the head takes sizes and shared weights from it."""
        return self.inputs.target

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the host's weights."""
        return self.inputs.fingerprint

    @property
    def draft_ids(self) -> Sequence[int]:
        """Draft vocabulary: ids in the captured answers, the most frequent ones if there is a limit.

        Raises:
            CrossdraftError: there are no answers.
        """
        store, target, most = self.inputs.store, self.inputs.target, self.inputs.recipe.vocabulary.most
        if store is None:
            return [token for token in range(target.vocab_size) if token not in target.reserved]
        return answer_ids(store, target.reserved, most)

    @property
    def about(self) -> str:
        """Sentence on how `measured_figures` measures."""
        return (
            f"Tokens a verify pass under the engine, bonus included, on {self.inputs.questions} questions about "
            f"validation clips; {self.drafted}."
        )

    @classmethod
    def default_device(cls, recipe: HeadRecipe) -> str:
        """Default device of the training."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def drafted(self) -> str:
        """Name of the drafts that the head is measured with; by default hidden ones."""
        return (
            "`hidden` the pass that verifies the hidden draft, and the share of those drafts accepted up to each "
            f"position; `rounds` the passes after it, of at most {self.inputs.recipe.measure.nodes} nodes"
        )

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the head that are measured on data if the recipe leaves them out; none by default.

        Args:
            kind: the network's configuration class.
            settings: settings that are known.
        """
        return {}

    def shared_weights(self) -> SharedWeights:
        """Weights that the head borrows from its host."""
        return SharedWeights.of(self.host.model)

    @abstractmethod
    def data(self, head: Head) -> TaskData:
        """Build the data that this head is trained on."""

    @abstractmethod
    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        """Figures of the finished head under the real engine, such as tokens per pass, for each way of drafting.

        Files that drafters need beside the weights are written to `folder`. Empty if there is no validation data.
        """

    def hidden_figures(self, drafter: Callable[[], Drafter[Any]]) -> dict[str, object]:
        """Figures of hidden drafts; the drafter is made only if there is validation data."""
        inputs = self.inputs
        return hidden_figures(inputs.validation, inputs.recipe.measure, lambda: (inputs.target, drafter()))


def answer_ids(store: CaptureStore, reserved: Collection[int], most: int = 0) -> list[int]:
    """Ids in captured answers, the most frequent first; only `most` of them, 0 = all.

    Args:
        reserved: ids of the target that do not represent text.

    Raises:
        CrossdraftError: there are no such ids.
    """
    counts = Counter(token for tokens in store.answer_tokens() for token in tokens.tolist())
    ids = [token for token, _ in counts.most_common() if token not in reserved]
    if not ids:
        raise CrossdraftError(f"The capture {store.folder} holds no answers to learn from.")
    return ids[:most] if most else ids


def check_of(loss_of: LossFn, batches: int = CHECKED) -> Check:
    """Make a validation check: figures of a loss over some batches."""

    @torch.no_grad()
    def check(step: int) -> Mapping[str, float]:
        parts = []
        for batch in range(batches):
            loss, figures = loss_of(batch, MicroBatch())
            parts.append(MicroLoss(float(loss), figures.get(LOSS_POSITIONS, 1.0), figures))
        loss, figures = merge_losses(parts)
        return {"loss": loss} | {key: value for key, value in figures.items() if key not in {LOSS_POSITIONS, PREFIXES}}

    return check


def capture_config(store: CaptureStore | None) -> dict[str, object] | None:
    """Identity and number of a capture's answers; `None` without a capture."""
    return None if store is None else {"capture": store.index.asked_sha256, "answers": len(store)}


def checked_on(optim: Optim, validation: CaptureStore | None) -> dict[str, object] | None:
    """Data that chooses the weights, for `core.trainer.Stage`: validation answers, where a figure is watched."""
    return None if optim.watch is None or validation is None else {"validation": capture_config(validation)}


def captured_source(store: CaptureStore) -> ClipSource:
    """Source of the clips that a capture is about.

    Raises:
        CrossdraftError: the capture has no clips yet; also as `sources.source_of`.
    """
    if not store.index.done:
        raise CrossdraftError(
            f"The capture {store.folder} holds no answers yet; complete it with `crossdraft capture`."
        )
    return source_of(store.index.asked, store.index.done)


def refuse_shared_clips(store: CaptureStore | None, validation: CaptureStore | None, online: int = 0) -> None:
    """Refuse validation clips that are also trained on; no model is loaded for this check.

    Args:
        store: the capture to learn from; `None` = the first `online` training scenes.
        validation: capture that should be about other clips.
        online: number of training scenes, if there is no `store`.

    Raises:
        CrossdraftError: both have a clip in common (`train.capture.overlap`), or a list of either cannot be read.
    """
    if validation is None:
        return
    learned = SceneSource(clips=online) if store is None else captured_source(store)
    name = "the training" if store is None else f"the capture {store.folder}"
    held_out = f"the capture {validation.folder}"
    if held_out == name:
        raise CrossdraftError(f"One capture, {validation.folder}, is named for training and validation; give another.")
    refuse_overlap({name: learned, held_out: captured_source(validation)})


def question_of(source: ClipSource, number: int) -> str:
    """Question of the answer of that number."""
    clip, question = source.locate(number)
    return source.questions(clip)[question]


def hidden_figures(
    store: CaptureStore | None,
    settings: Measure,
    load: Callable[[], tuple[Target, Drafter[Any]]],
    *,
    events: bool = True,
) -> dict[str, object]:
    """Measure a drafter by its hidden drafts for questions about validation clips; empty if there are none.

    Args:
        store: capture of the clips.
        settings: numbers of questions, and of nodes of a draft.
        load: loads the target and its drafter; called only if there are questions.
        events: true if the drafter reads the clips' events.
    """
    questions = validation_questions(store, settings.pairs)
    if store is None or not questions:
        return {}
    source = captured_source(store)
    requests = [replace(one, events=clip_events(source, clip)) if events else one for clip, one in questions]
    target, drafter = load()
    return figures_json(measure_hidden(target, drafter, requests, settings.nodes))


def validation_questions(store: CaptureStore | None, pairs: int) -> Sequence[tuple[int, Request]]:
    """Return questions about validation clips with their clip's number: the first of each clip, then the second, …."""
    if store is None or not pairs:
        return []
    source = captured_source(store)
    by_clip = [source.read(clip).requests(LONGEST) for clip in range(min(len(source), pairs))]
    turns = [
        (clip, questions[turn])
        for turn in range(max(map(len, by_clip)))
        for clip, questions in enumerate(by_clip)
        if turn < len(questions)
    ]
    return turns[:pairs]
