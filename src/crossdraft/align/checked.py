"""Speculative prefill with checks on a sample of requests, and a threshold that keeps to a quality budget. LOSSY.

    nothing can be predicted    the whole clip is read, and nothing is learned of it
    confidence < threshold      the whole clip is read
    otherwise                   the predicted one; but some of these requests, by chance, are checked: they are
                                answered from the true prefill, and then from the predicted one, to be compared

Each check moves the threshold: up where an answer lost more than the budget, down where it lost less, as in adaptive
conformal inference (Gibbs & Candes 2021). A clip that is read whole because of the gate has lost nothing, and moves it
down by as much as such a check would, times the chance of one. So in the long run requests that could be predicted lose
the budget on average, however well or badly the gate knows what it says.

The threshold stays between 0 and 1. What would take it below 0 is forgotten: less was lost than might have been. What
takes it above 1 is owed: nothing is predicted until requests that are read whole have paid for it.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import numpy as np

from crossdraft.errors import CrossdraftError


class Tokens(Protocol):
    """An answer."""

    @property
    def tokens(self) -> Sequence[int]:
        """Its ids."""
        ...


R = TypeVar("R")
A = TypeVar("A", bound=Tokens)


@dataclass(frozen=True)
class QualityBudget:
    """What may be lost.

    Args:
        loss: 1 - ROUGE-L between an answer and the target's own, on average over all requests.
        check: share of the requests with a predicted prefill that are checked.
        rate: how far a check moves the threshold, for each unit of loss beyond the budget; about the spread of the
            gate's confidence over clips.
        seed: of the choice which are checked.

    Raises:
        CrossdraftError: a share that is none, or no check at all.
    """

    loss: float = 0.05
    check: float = 0.1
    rate: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.loss <= 1:
            raise CrossdraftError(f"A quality budget is a loss from 0 to 1; {self.loss} is none.")
        if not 0 < self.check <= 1:
            raise CrossdraftError(f"The share of checked requests is above 0 and at most 1; {self.check} is not.")
        if not 0 < self.rate <= 1:
            raise CrossdraftError(f"The rate of a threshold is above 0 and at most 1; {self.rate} is not.")


@dataclass(frozen=True)
class CheckedAnswer(Generic[A]):
    """An answer, and how it came about.

    Args:
        predicted: the one after predicted tokens; `None` = there is none.
        true: the target's own; `None` = there is none.
        loss: of the one from the other, where there are both.
    """

    predicted: A | None
    true: A | None
    loss: float | None = None

    @property
    def answer(self) -> A:
        """Which is given: the target's own, where there is one."""
        return cast("A", self.predicted if self.true is None else self.true)

    @property
    def lossy(self) -> bool:
        """Whether it need not be the target's own."""
        return self.true is None


class CheckedPrefill(Generic[R, A]):
    """Answers requests, each from a predicted prefill or from the true one; see the module's text.

    It may be asked from several threads at once, if `confidence`, `predicted` and `true` may. The answers that are
    compared should be greedy ones: sampled ones differ by chance.

    Args:
        confidence: of the gate, for a request, `None` where nothing can be predicted; and the request as `predicted`
            takes it, with what the gate read of it.
        predicted, true: answer a request one way and the other.
        budget: see there.
        threshold: with which it begins, 0..1, in the gate's own metric; see `SpeculativePrefill.first_threshold`.

    Raises:
        CrossdraftError: a threshold outside its range.
    """

    def __init__(
        self,
        confidence: Callable[[R], tuple[float | None, R]],
        predicted: Callable[[R], A],
        true: Callable[[R], A],
        budget: QualityBudget,
        threshold: float,
    ) -> None:
        if not 0 <= threshold <= 1:
            raise CrossdraftError(f"A threshold of confidence is a number from 0 to 1; {threshold} is none.")
        self.confidence, self.predicted, self.true, self.budget = confidence, predicted, true, budget
        self._level = threshold  # above 1 by what is owed
        self._chance = np.random.default_rng(budget.seed)
        self._lock = threading.Lock()  # of the two, not of answers

    @property
    def threshold(self) -> float:
        """Confidence that is asked for now, 0..1."""
        return min(1.0, self._level)

    def answer(self, request: R) -> CheckedAnswer[A]:
        """Answer one request; of a checked one both answers are waited for."""
        confidence, read = self.confidence(request)
        if confidence is None or math.isnan(confidence):
            return CheckedAnswer(None, self.true(request))
        with self._lock:
            confident = confidence >= self._level
            if not confident:
                self._learn(0.0, self.budget.check)
            checked = confident and self._chance.random() < self.budget.check
        if not confident:
            return CheckedAnswer(None, self.true(request))
        if not checked:
            return CheckedAnswer(self.predicted(read), None)
        own = self.true(request)
        lossy = self.predicted(read)
        loss = 1 - rouge_l(lossy.tokens, own.tokens)
        with self._lock:
            self._learn(loss, 1.0)
        return CheckedAnswer(lossy, own, loss)

    def _learn(self, loss: float, weight: float) -> None:
        self._level = max(0.0, self._level + self.budget.rate * (loss - self.budget.loss) * weight)


def rouge_l(found: Sequence[int] | Sequence[str], wanted: Sequence[int] | Sequence[str]) -> float:
    """ROUGE-L (Lin 2004) of two texts, by tokens: F1 of their longest common subsequence.

    >>> rouge_l([1, 2, 3, 4], [1, 3, 4, 5]), rouge_l([], []), rouge_l([1], [])
    (0.75, 1.0, 0.0)
    """
    if not found and not wanted:
        return 1.0
    row = [0] * (len(wanted) + 1)
    for token in found:
        before = 0
        for at, other in enumerate(wanted, 1):
            before, row[at] = row[at], before + 1 if token == other else max(row[at], row[at - 1])
    return 2 * row[-1] / (len(found) + len(wanted))
