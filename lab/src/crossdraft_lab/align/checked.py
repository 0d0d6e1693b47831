"""Speculative prefill with checks on a sample of requests, and a threshold that keeps to a quality budget. LOSSY.

    nothing can be predicted    the whole clip is read; the request is counted, and nothing is learned from it
    confidence < threshold      the whole clip is read
    otherwise                   the predicted one; but a random sample of these requests is checked: the whole clip is
                                read, and its answer compared with the one that predicted tokens would have led to

Each check moves the threshold: up where an answer lost more than the budget, down where it lost less, as in adaptive
conformal inference (Gibbs & Candes 2021). A clip that is read whole because of the gate has lost nothing, and moves the
threshold down by as much as a check without loss would, times the probability of a check. So in the long run the
requests that could be predicted lose the budget on average, however well or badly the gate is calibrated.

The threshold stays between 0 and 1. A move below 0 is cut off there: less was lost than was allowed. A move above 1 is
kept as a debt: nothing is predicted until requests that are read whole have paid it off.
"""

import math
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from crossdraft.compressions import BudgetStatus
from crossdraft.errors import CrossdraftError


class Read(StrEnum):
    """Way to prefill a request that could be predicted."""

    PREDICTED = "predicted"
    CHECKED = "checked"  # read whole; the answer is compared with the one after predicted tokens
    WHOLE = "whole"


@dataclass(frozen=True)
class QualityBudget:
    """Limit on the loss of quality, and how it is checked.

    Args:
        loss: largest mean of 1 - ROUGE-L between an answer and the target's own, over all requests.
        check: share of the requests with a predicted prefill that are checked.
        rate: change of the threshold by a check, for each unit of loss beyond the budget; about the spread of the
            gate's confidence over clips.
        seed: seed of the choice of checked requests.

    Raises:
        CrossdraftError: a share outside its range, or no check at all.
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


class PrefillController:
    """Decides how each request is read, and learns from checks; see the module's docstring. Safe for any thread.

    Args:
        budget: the limit, and its checks; see `QualityBudget`.
        threshold: initial threshold, 0..1, on the gate's own scale; see `PrefillGate.threshold`.

    Raises:
        CrossdraftError: a threshold outside its range.
    """

    def __init__(self, budget: QualityBudget, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise CrossdraftError(f"A threshold of confidence is a number from 0 to 1; {threshold} is none.")
        self.budget = budget
        self._level = threshold  # above 1: the excess is a debt
        self._chance = np.random.default_rng(budget.seed)
        self._reads, self._unpredictable = Counter[Read](), 0
        self._compared, self._loss = 0, 0.0
        self._lock = threading.Lock()  # guards all attributes above

    @property
    def threshold(self) -> float:
        """Confidence that is required now, 0..1."""
        return min(1.0, self._level)

    @property
    def status(self) -> BudgetStatus:
        """State of the budget until now."""
        with self._lock:
            reads: dict[str, int] = {read: self._reads[read] for read in Read}
            return BudgetStatus(
                self.budget.loss, self.threshold, reads, self._unpredictable, self._compared, self._loss
            )

    def choose(self, confidence: float) -> Read:
        """Choose how the next request is read; a request with confidence NaN is read whole, and changes nothing.

        A caller that gets `Read.CHECKED` reports the outcome of the check with `learn`.
        """
        if math.isnan(confidence):
            return Read.WHOLE
        with self._lock:
            read = self._would_read(confidence)
            if read is Read.WHOLE:
                self._move(0.0, self.budget.check)
            elif self._chance.random() < self.budget.check:
                read = Read.CHECKED
            self._reads[read] += 1
            return read

    def count_unpredictable(self) -> None:
        """Count a request that cannot be predicted and is read whole; the threshold stays unchanged."""
        with self._lock:
            self._unpredictable += 1

    def would_read(self, confidence: float) -> Read:
        """Choose by the current threshold, without a check; nothing is learned or counted."""
        with self._lock:
            return self._would_read(confidence)

    def _would_read(self, confidence: float) -> Read:
        return Read.PREDICTED if confidence >= self._level else Read.WHOLE

    def learn(self, loss: float) -> None:
        """Move the threshold after a check; `loss` is the loss of the answer after predicted tokens, 0..1."""
        with self._lock:
            self._compared, self._loss = self._compared + 1, self._loss + loss
            self._move(loss, 1.0)

    def _move(self, loss: float, weight: float) -> None:
        self._level = max(0.0, self._level + self.budget.rate * (loss - self.budget.loss) * weight)


def rouge_l(found: Sequence[Hashable], wanted: Sequence[Hashable]) -> float:
    """ROUGE-L (Lin 2004) of two texts, by tokens: F1 of their longest common subsequence.

    The subsequence is found for all of `wanted` at once, a bit for each token (Hyyrö 2004): at the end the number of
    zeros in `bits` is its length.

    >>> rouge_l([1, 2, 3, 4], [1, 3, 4, 5]), rouge_l([], []), rouge_l([1], [])
    (0.75, 1.0, 0.0)
    """
    if not found and not wanted:
        return 1.0
    masks: dict[Hashable, int] = {}  # token -> bits of its positions in `wanted`
    for at, token in enumerate(wanted):
        masks[token] = masks.get(token, 0) | 1 << at
    ones = bits = (1 << len(wanted)) - 1
    for token in found:
        matches = bits & masks.get(token, 0)
        bits = (bits + matches | bits - matches) & ones
    return 2 * (len(wanted) - bits.bit_count()) / (len(found) + len(wanted))
