"""The highest rate of windows of which a method drops none: a bisection over a ladder of rates, methods in turn.

Each try replays the whole stream with a window at each of so many moments a second. As one window may wait while
another is answered, a rate holds while answers keep up with it over the length of the stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crossdraft.bench.common import orders
from crossdraft.bench.watch import StreamBench, StreamRun, Watched, prepared, tell
from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class RateTry:
    """A run at a rate, in windows a second."""

    rate: float
    run: StreamRun

    @property
    def holds(self) -> bool:
        """Whether every window was answered."""
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
        """How the run at `next` went."""
        at = (self._low + self._high) // 2
        self.tries.append(RateTry(self.rates[at], run))
        if self.tries[-1].holds:
            self._low = at + 1
        else:
            self._high = at


def run_rates(
    plan: StreamBench, rates: Sequence[float], tick: Callable[[str], None] | None = None, before: int = 0
) -> list[dict[str, list[RateTry]]]:
    """Of each of the plan's questions the tries of each method, interleaved as in `run_watch`.

    Args:
        plan: what to measure; its windows come at the rates.
        rates: to try, rising.
        tick, before: as `run_watch`.

    Raises:
        CrossdraftError: the rates do not rise.
    """
    RateSearch(rates)
    with prepared(plan, tick) as watched:
        return [
            _searched(watched, question, rates, tick, before + number) for number, question in enumerate(plan.asked)
        ]


def _searched(
    watched: Watched, question: str, rates: Sequence[float], tick: Callable[[str], None] | None, number: int
) -> dict[str, list[RateTry]]:
    searches = {name: RateSearch(rates) for name in watched.methods}
    turns = orders(list(searches), after=number)
    while any(search.next is not None for search in searches.values()):
        for name in next(turns):
            search = searches[name]
            if (rate := search.next) is not None:
                search.note(watched.run(name, question, f"{number}, {rate:g} a second", 1 / rate))
                tell(tick, name)
    return {name: search.tries for name, search in searches.items()}
