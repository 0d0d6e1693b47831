"""The highest rate of windows of which a method drops none: a bisection over a ladder of rates, methods in turn.

Each try replays the same windows of the same stream, at the speed at which so many of them are due a second: whatever
the rate, they are as many, evenly spaced, and have the same answers. A rate holds if a try of two drops none, and it is
taken for granted that all rates below it hold, and none above one that fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crossdraft.comparisons import orders
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.watch import StreamBench, StreamRun, prepared, tell

TRIES = 2  # of a rate that fails: what else the machine does may cost a window


@dataclass(frozen=True, slots=True)
class RateTry:
    """A run at a rate, in windows a second."""

    rate: float
    run: StreamRun

    @property
    def holds(self) -> bool:
        """True if every window was answered."""
        return not self.run.summary.dropped


@dataclass(slots=True)
class RateSearch:
    """A bisection over rates, the lowest first.

    Args:
        rates: rising.

    Attributes:
        tries: in their order.
    """

    rates: Sequence[float]
    tries: list[RateTry] = field(default_factory=list[RateTry])
    _low: int = 0  # so many of the lowest hold
    _high: int = field(init=False)  # so many may

    def __post_init__(self) -> None:
        if not self.rates or list(self.rates) != sorted({rate for rate in self.rates if rate > 0}):
            raise CrossdraftError("Rates must be above 0 and rise; give them in order, each once.")
        self._high = len(self.rates)

    @property
    def next(self) -> float | None:
        """The rate to try; `None` once the highest one is known."""
        return None if self._low == self._high else self.rates[(self._low + self._high) // 2]

    def note(self, run: StreamRun) -> None:
        """Record the run at `next`."""
        at = (self._low + self._high) // 2
        self.tries.append(RateTry(self.rates[at], run))
        if self.tries[-1].holds:
            self._low = at + 1
        elif sum(one.rate == self.rates[at] for one in self.tries) == TRIES:
            self._high = at


def run_rates(
    plan: StreamBench, rates: Sequence[float], tick: Callable[[str], None] | None = None, before: int = 0
) -> dict[str, list[RateTry]]:
    """The tries of each method with the first of the plan's questions.

    Args:
        plan: what to measure; its speed is that of a rate.
        rates: to try, in windows a second, rising.
        tick: called with the method's name after every run, warm-ups included.
        before: parts of the same measurement that came earlier: another order begins.

    Raises:
        CrossdraftError: the rates do not rise.
    """
    searches, question = {name: RateSearch(rates) for name in plan.names}, plan.asked[0]
    turns = orders(plan.names, after=before)
    with prepared(plan, tick) as watched:
        while any(search.next is not None for search in searches.values()):
            for name in next(turns):
                search = searches[name]
                if (rate := search.next) is not None:
                    namespace = f"try {len(search.tries)}"
                    search.note(watched.run(name, question, namespace, rate * plan.windowing.every_s))
                    tell(tick, name)
    return {name: search.tries for name, search in searches.items()}
