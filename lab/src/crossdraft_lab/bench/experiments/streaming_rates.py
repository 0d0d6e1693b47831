"""Rates of experiment 4: the highest at which no window is dropped, by method, from each question's tries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossdraft_lab.bench.experiments.record import FigureTable
from crossdraft_lab.bench.specs import ALONE
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.watch_rates import RateTry

Tried = Mapping[str, Sequence[Sequence[RateTry]]]
"""Of each method the tries of each question."""


def highest(tries: Sequence[RateTry]) -> float:
    """The highest rate of those tried at which no window was dropped; 0 if there is none."""
    return max((one.rate for one in tries if one.holds), default=0.0)


def unequal(tried: Tried) -> list[str]:
    """Methods with an answer to a window that is not the target's own, whatever the rates of the two."""
    found = []
    for name, questions in tried.items():
        for tries, alone in zip(questions, tried[ALONE[0]], strict=True):
            own = {number: tokens for one in alone for number, tokens in one.run.tokens.items()}
            if any(own.get(number, tokens) != tokens for one in tries for number, tokens in one.run.tokens.items()):
                found.append(name)
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class HighestRates:
    """The highest rates of all questions.

    Args:
        each: of each method, windows a second, in the order of the questions.
        late_s: of each method, by how much a frame came late at most.
        drafter: the pair's.
    """

    each: Mapping[str, Sequence[float]]
    late_s: Mapping[str, float]
    drafter: str

    @classmethod
    def of(cls, tried: Tried, drafter: str) -> "HighestRates":
        """Find the highest rates of what was tried."""
        late_s = {
            name: max(one.run.summary.late_s for tries in questions for one in tries)
            for name, questions in tried.items()
        }
        return cls({name: list(map(highest, questions)) for name, questions in tried.items()}, late_s, drafter)

    @property
    def best(self) -> str:
        """The way to run the target alone that keeps up with more."""
        return max((name for name in self.each if name != self.drafter), key=lambda name: sum(self.each[name]))

    def mean(self, name: str) -> Interval:
        """Mean rate of a method, drawn over questions."""
        return ratio(self.each[name], [1] * len(self.each[name]))

    def over(self, name: str) -> Interval | None:
        """A method's over those of the target alone; `None` where that does not keep up with the lowest."""
        return ratio(self.each[name], self.each[self.best]) if all(self.each[self.best]) else None

    @property
    def sentence(self) -> str:
        """Sentence on what was found."""
        over = self.over(self.drafter)
        times = "" if over is None else f": {over} times the rate"
        return (
            f"Without dropping one {self.drafter} keeps up with {self.mean(self.drafter)} windows a second, "
            f"{self.best} with {self.mean(self.best)}{times}."
        )

    def table(self, rates: Sequence[float], windows: int) -> FigureTable:
        """A row for each method."""
        return FigureTable(
            f"The highest rate at which none of {windows} windows is dropped",
            ("", "windows a second", "lowest, highest", f"over {self.best}", "frames late, at most, ms"),
            tuple(
                (
                    name,
                    str(self.mean(name)),
                    f"{min(each):g}, {max(each):g}",
                    str(self.over(name) or "–"),
                    f"{1e3 * self.late_s[name]:.0f}",
                )
                for name, each in self.each.items()
            ),
            f"Of {', '.join(f'{rate:g}' for rate in rates)} a second, by bisection, methods in turn; 0 is none of "
            "them, and what keeps up with the last one may with more. The stream is replayed at the speed that gives "
            "the rate; a rate that fails is tried twice. One window may wait while another is answered. The mean of "
            "the questions; intervals of so few are narrower than the truth.",
        )

    def to_json(self, name: str) -> dict[str, object]:
        """A method's as plain values."""
        over = self.over(name)
        return {
            "rate_without_drops": {**self.mean(name).to_json(), "each": list(self.each[name])},
            "rate_without_drops_over_alone": None if over is None else over.to_json(),
            "rate_without_drops_late_ms": round(1e3 * self.late_s[name], 1),
        }
