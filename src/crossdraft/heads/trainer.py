"""Learning piece by piece: steps of a copy, then a trial against the weights that serve, then a swap if it won."""

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.fast.packed_linear import PrepackedLinear
from crossdraft.errors import CrossdraftError
from crossdraft.heads.apprentice import StudentCopy, trained
from crossdraft.heads.budget import TimeBudget
from crossdraft.heads.buffer import ReplayBuffer, Sample, batch_of
from crossdraft.heads.networks.base import Head
from crossdraft.heads.networks.train_batch import TrainBatch

log = logging.getLogger(__name__)

BATCH = 4  # answers of a step, and of a piece of a trial
STEPS = 16  # between trials
PATIENCE = 8  # trials in a row that did not help, after which the copy is made anew
STEP, TRIAL = "step", "trial"


@dataclass(frozen=True)
class OnlineStats:
    """What learning has come to.

    Args:
        answers, bytes: what is kept of answers, and the memory of that and of all copies of the weights.
        steps, trials, swaps: how often the copy learned, was tried, and took over.
        restarts: how often the copy was made anew because a loss or gradient was not finite.
        tau_served, tau_learned: tokens a round of teacher-forced chains over the answers held back, of the weights
            that served and of the copy, at the last trial.
        seconds: time spent on it.
    """

    answers: int = 0
    bytes: int = 0
    steps: int = 0
    trials: int = 0
    swaps: int = 0
    restarts: int = 0
    tau_served: float = 0.0
    tau_learned: float = 0.0
    seconds: float = 0.0


@dataclass
class _Trial:
    """Both sets of weights over the answers held back, a few at a time: [tokens, places] so far."""

    left: list[Sample]
    served: list[float] = field(default_factory=lambda: [0.0, 0.0])
    learned: list[float] = field(default_factory=lambda: [0.0, 0.0])


class OnlineTrainer:
    """Keeps the weights of a head that serves up with what its target says.

    Args:
        head: the one that serves; its weights are changed in place, between two rounds, all at once.
        rows: [D, H] the target's output rows of the draft vocabulary.
        ring: what it learns from.
        purse: the time it may take.
        rate: AdamW's.

    Raises:
        CrossdraftError: the head's layers are packed, so that they cannot be written to.
    """

    def __init__(self, head: Head, rows: Tensor, buffer: ReplayBuffer, budget: TimeBudget, rate: float) -> None:
        if any(isinstance(module, PrepackedLinear) for module in head.modules()):
            raise CrossdraftError("A head whose layers are packed cannot learn; load it with packed=False.")
        self.head, self.rows, self.buffer, self.budget, self.rate = head, rows, buffer, budget, rate
        self.frozen = False
        self._chance = torch.Generator().manual_seed(0)
        self._counts = OnlineStats()
        with torch.inference_mode(mode=False):
            self._loaded = self._before = _copied(head)
            self._begin()

    @property
    def figures(self) -> OnlineStats:
        """What it has come to so far."""
        copies = [*self._loaded, *(() if self._before is self._loaded else self._before)]
        held = self.buffer.bytes + self._copy.bytes + sum(w.numel() * w.element_size() for w in copies)
        return replace(self._counts, answers=len(self.buffer), bytes=held, seconds=self.budget.spent)

    def work(self) -> None:
        """A round has passed: do what there is time for."""
        if self.frozen:
            return
        self.budget.earn()
        if len(self.buffer.side(held_back=True)) < 2:
            return
        with torch.inference_mode(mode=False), torch.enable_grad():
            while self.budget.affords(kind := STEP if self._trial is None else TRIAL):
                with self.budget.pay(kind):
                    self._step() if self._trial is None else self._try(self._trial)
            self.budget.wait(kind)

    def rollback(self, *, loaded: bool = False) -> None:
        """Serve with the weights from before the last swap again, or with those that were loaded."""
        with torch.inference_mode(mode=False):
            _put(self.head, self._loaded if loaded else self._before)
            self._begin()

    def _begin(self) -> None:
        """A copy of what serves now."""
        self._copy = StudentCopy(self.head, self.rows, self.rate)
        self._trial: _Trial | None = None
        self._since = self._vain = 0

    def _step(self) -> None:
        answers = self.buffer.side(held_back=False)
        drawn = torch.randperm(len(answers), generator=self._chance)[:BATCH]
        if not self._copy.step(self._lesson([answers[place] for place in drawn.tolist()])):
            if not self._counts.restarts:
                log.warning("A loss of the head that learns was not finite; its copy was made anew.")
            self._count(restarts=1)
            self._begin()
            return
        self._count(steps=1)
        self._since += 1
        if self._since >= STEPS:
            self._trial = _Trial(self.buffer.side(held_back=True))

    def _try(self, trial: _Trial) -> None:
        """A piece of a trial; after the last one, the copy takes over if more of its drafts would be accepted."""
        some, trial.left = trial.left[:BATCH], trial.left[BATCH:]
        batch = self._lesson(some)
        for head, sums in ((self.head, trial.served), (self._copy.network, trial.learned)):
            for place, value in enumerate(self._copy.judge(head, batch)):
                sums[place] += value
        if trial.left:
            return
        served, learned = (tokens / max(places, 1) for tokens, places in (trial.served, trial.learned))
        self._counts = replace(self._counts, tau_served=served, tau_learned=learned)
        self._count(trials=1)
        self._trial, self._since = None, 0
        if learned > served:
            self._before = _copied(self.head)
            _put(self.head, trained(self._copy.network))
            self._count(swaps=1)
            self._vain = 0
        else:
            self._vain += 1
            if self._vain >= PATIENCE:
                self._begin()

    def _lesson(self, answers: list[Sample]) -> TrainBatch:
        return batch_of(answers, self.head.draft_ids.device, self.head.lm_head.weight.dtype)

    def _count(self, **more: int) -> None:
        values: dict[str, Any] = {name: getattr(self._counts, name) + value for name, value in more.items()}
        self._counts = replace(self._counts, **values)


def _copied(head: Head) -> list[Tensor]:
    return [weight.detach().clone() for weight in trained(head)]


@torch.no_grad()
def _put(head: Head, values: "list[Tensor] | list[torch.nn.Parameter]") -> None:
    for weight, value in zip(trained(head), values, strict=True):
        weight.copy_(value)
