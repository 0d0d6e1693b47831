"""Time that may be spent beside the work, so much a round: what is saved in one round may be spent in a later one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossdraft.errors import CrossdraftError

LARGEST = 1.0
SAVED = 20  # most rounds whose time is saved up
FORGET = 0.9  # what an old cost still counts after a round in which it could not be paid


class TimeBudget:
    """Decides when a piece of work may be done, by what its kind cost before.

    A piece is begun only when all it is expected to cost has been saved up, and none once the round's own time is used.
    What it cost beyond that is a debt to be saved up again. So whatever the pieces cost,

        spent ≤ rounds · seconds + one piece      over any number of rounds,
        spent ≤ seconds + one piece               in any one of them.

    Args:
        seconds: earned each round.
        clock: seconds that have gone by.

    Raises:
        CrossdraftError: `seconds` is not above 0, or above `LARGEST`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 < seconds <= LARGEST:
            raise CrossdraftError(
                f"seconds is {seconds}; a head learns in more than 0 and at most {LARGEST} of every round."
            )
        self.seconds, self.most = seconds, SAVED * seconds
        self.clock = clock
        self.saved = self.spent = 0.0
        self._this_round = 0.0
        self._costs: dict[str, float] = {}

    def earn(self) -> None:
        """A round begins."""
        self.saved = min(self.saved + self.seconds, self.most)
        self._this_round = 0.0

    def affords(self, kind: str) -> bool:
        """True if a piece of work of that kind may be done now."""
        return self._this_round < self.seconds and self._expected(kind) <= self.saved

    def wait(self, kind: str) -> None:
        """It was not done this round: what cost more than can ever be saved is tried again some day."""
        if self.saved == self.most:
            self._costs[kind] = FORGET * self._expected(kind)

    @contextmanager
    def pay(self, kind: str) -> Iterator[None]:
        """Do a piece of work; its time is measured and taken out."""
        start = self.clock()
        try:
            yield
        finally:
            cost = self.clock() - start
            self.saved -= cost
            self.spent += cost
            self._this_round += cost
            self._costs[kind] = max(cost, FORGET * self._costs.get(kind, 0.0))

    def _expected(self, kind: str) -> float:
        """What a piece will cost; all that can be saved, if none has been done yet."""
        return self._costs.get(kind, self.most)
