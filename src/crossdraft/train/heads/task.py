"""What differs between trainings of heads: who is read, what is learned from it, and how the result is measured."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.objective import PLACES
from crossdraft.train.capture.clip import ClipSource
from crossdraft.train.capture.sources import source_of
from crossdraft.train.capture.store import CaptureStore
from crossdraft.train.core.dist import LossFn, MicroBatch, MicroLoss, merge_losses
from crossdraft.train.heads.recipe import HeadRecipe

CHECKED = 8  # batches of a validation check
Check = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True)
class Given:
    """What a training begins with.

    Args:
        recipe: what to do.
        target: whose words are learned.
        source: where that was loaded from.
        fingerprint: of its weights.
        event: the event model, for heads on one: `event`, or a folder.
        store: a capture to learn from.
        kept_back: a validation capture, for checks and the final measurement.
        online: scenes to ask the target about, where there is no capture.
        out: where the training keeps what it must not do twice.
    """

    recipe: HeadRecipe
    target: Target
    source: str
    fingerprint: str
    event: str
    store: CaptureStore | None
    kept_back: CaptureStore | None
    online: int
    out: Path

    @property
    def questions(self) -> int:
        """How many questions about validation clips the finished head is measured with."""
        return 0 if self.kept_back is None else min(self.recipe.measure.pairs, len(self.kept_back))


@dataclass(frozen=True)
class Lectures:
    """What a head is taught with.

    Args:
        loss_of: the loss of a step's share.
        describe: what a step learns from, for people.
        check: validation; `None` = there is no validation data.
    """

    loss_of: LossFn
    describe: Callable[[int], str]
    check: Check | None


class Course(Protocol):
    """A way of training heads."""

    @property
    def host(self) -> Target:
        """The model that the head belongs to: whose sizes it has, and whose tables it borrows."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of that model's weights."""
        ...

    @property
    def draft_ids(self) -> Sequence[int]:
        """The words that are worth drafting."""
        ...

    @property
    def about(self) -> str:
        """How `measured` measures, in a sentence."""
        ...

    def measured_sizes(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the head that are measured on data because the recipe leaves them out; empty if there are none.

        Args:
            kind: the network's configuration class.
            settings: those that are known.
        """
        ...

    def tables(self) -> SharedWeights:
        """What the head borrows."""
        ...

    def lectures(self, head: Head) -> Lectures:
        """What this head is taught with."""
        ...

    def measured(self, head: Head, folder: Path) -> dict[str, object]:
        """What the finished head is worth under the real engine, by the way of drafting.

        What drafters need beside the weights is left in `folder`. Empty if there is nothing to measure with.
        """
        ...


def check_of(loss_of: LossFn) -> Check:
    """Validation: the figures of a loss, over some batches."""

    @torch.no_grad()
    def check(step: int) -> Mapping[str, float]:
        parts = []
        for batch in range(CHECKED):
            loss, figures = loss_of(batch, MicroBatch())
            parts.append(MicroLoss(float(loss), figures.get(PLACES, 1.0), figures))
        loss, figures = merge_losses(parts)
        return {"loss": loss} | {key: value for key, value in figures.items() if key != PLACES}

    return check


LONGEST = 96  # tokens of an answer that is measured


def draft_ids_of(store: CaptureStore, most: int, banned: Sequence[int]) -> list[int]:
    """The ids that the captured answers are made of, the most frequent first if there are to be fewer.

    Raises:
        CrossdraftError: there are none.
    """
    counts = Counter(token for tokens in store.answer_tokens() for token in tokens.tolist())
    barred = set(banned)
    ids = [token for token, _ in counts.most_common() if token not in barred]
    if not ids:
        raise CrossdraftError(f"The capture {store.folder} holds no answers to learn from.")
    return ids[:most] if most else ids


def source_behind(store: CaptureStore) -> ClipSource:
    """The clips that a capture is about."""
    return source_of(store.index.asked, store.index.done)


def kept_back_requests(store: CaptureStore | None, pairs: int) -> list[Request]:
    """Questions about validation clips, as few of each clip as will do."""
    return [request for _, request in kept_back_questions(store, pairs)]


def kept_back_questions(store: CaptureStore | None, pairs: int) -> Sequence[tuple[int, Request]]:
    """As `kept_back_requests`, each with the number of its clip."""
    if store is None or not pairs:
        return []
    source = source_behind(store)
    asked = [source.read(clip).requests(LONGEST) for clip in range(min(len(source), pairs))]
    turns = [
        (clip, questions[turn])
        for turn in range(max(map(len, asked)))
        for clip, questions in enumerate(asked)
        if turn < len(questions)
    ]
    return turns[:pairs]
