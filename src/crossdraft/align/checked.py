"""Speculative prefill with checks on a sample of requests, and a threshold that keeps to a quality budget. LOSSY.

    confidence < threshold    the whole clip is read
    otherwise                 the predicted one; but some of these requests, by chance, are checked: they are answered
                              from the true prefill, and then from the predicted one, to be compared

Each check moves the threshold: up where an answer lost more than the budget, down where it lost less, as in adaptive
conformal inference (Gibbs & Candes 2021). A clip that is read whole has lost nothing, and moves it down by as much as
such a check would, times the chance of one. So in the long run requests lose the budget on average, however well or
badly the gate knows what it says.
"""

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

    The answers that are compared should be greedy ones: sampled ones differ by chance.

    Args:
        confidence: of the gate, for a request; and the request as `predicted` takes it, with what the gate read of it.
        predicted, true: answer a request one way and the other.
        budget: see there.
        threshold: with which it begins; by default the gate must expect no more to be lost than the budget.
    """

    def __init__(
        self,
        confidence: Callable[[R], tuple[float, R]],
        predicted: Callable[[R], A],
        true: Callable[[R], A],
        budget: QualityBudget,
        threshold: float | None = None,
    ) -> None:
        self.confidence, self.predicted, self.true, self.budget = confidence, predicted, true, budget
        self.threshold = 1 - budget.loss if threshold is None else threshold
        self._chance = np.random.default_rng(budget.seed)

    def answer(self, request: R) -> CheckedAnswer[A]:
        """Answer one request; of a checked one both answers are waited for."""
        budget = self.budget
        confidence, read = self.confidence(request)
        if not confidence >= self.threshold:  # no number is no confidence
            self.threshold -= budget.rate * budget.loss * budget.check
            return CheckedAnswer(None, self.true(request))
        if self._chance.random() >= budget.check:
            return CheckedAnswer(self.predicted(read), None)
        own = self.true(request)
        lossy = self.predicted(read)
        loss = 1 - rouge_l(lossy.tokens, own.tokens)
        self.threshold += budget.rate * (loss - budget.loss)
        return CheckedAnswer(lossy, own, loss)


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
