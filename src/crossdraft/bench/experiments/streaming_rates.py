"""Of experiment 4: the highest rate of windows at which none is dropped, by method, from the tries of each question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossdraft.bench.experiments.record import FigureTable
from crossdraft.bench.statistics import Interval, ratio, ratio_of_some
from crossdraft.bench.watch_rates import RateTry

Tried = Mapping[str, Sequence[Sequence[RateTry]]]
"""Of each method the tries of each question."""


def highest(tries: Sequence[RateTry]) -> float:
    """The highest rate of those tried at which no window was dropped; 0 if there is none."""
    return max((one.rate for one in tries if one.holds), default=0.0)


@dataclass(frozen=True, slots=True)
class HighestRates:
    """The highest rates of all questions.

    Args:
        each: of each method, windows a second, in the order of the questions.
        drafter: the pair's.
    """

    each: Mapping[str, Sequence[float]]
    drafter: str

    @classmethod
    def of(cls, tried: Tried, drafter: str) -> "HighestRates":
        """Of what was tried."""
        return cls({name: [highest(one) for one in questions] for name, questions in tried.items()}, drafter)

    @property
    def best(self) -> str:
        """The way to run the target alone that keeps up with more."""
        return max((name for name in self.each if name != self.drafter), key=lambda name: sum(self.each[name]))

    def mean(self, name: str) -> Interval:
        """Of a method, drawn over questions."""
        return ratio(self.each[name], [1] * len(self.each[name]))

    def over(self, name: str) -> Interval | None:
        """A method's over those of the target alone; `None` where that keeps up with none."""
        return ratio_of_some(list(zip(self.each[name], self.each[self.best], strict=True)))

    @property
    def sentence(self) -> str:
        """What was found."""
        over = self.over(self.drafter)
        times = "" if over is None else f": {over} times the rate"
        return (
            f"Without dropping a window {self.drafter} answers {self.mean(self.drafter)} a second, {self.best} "
            f"{self.mean(self.best)}{times}."
        )

    def table(self, rates: Sequence[float], seconds: int) -> FigureTable:
        """A row for each method."""
        return FigureTable(
            f"The highest rate at which no window of {seconds} s of stream is dropped",
            ("", "windows a second", "lowest, highest", f"over {self.best}"),
            tuple(
                (name, str(self.mean(name)), f"{min(each):g}, {max(each):g}", str(self.over(name) or "–"))
                for name, each in self.each.items()
            ),
            f"Of {', '.join(f'{rate:g}' for rate in rates)} a second, by bisection, a run each, methods in turn; 0 is "
            "none of them. The mean of the questions; one window may wait while another is answered.",
        )

    def to_json(self, name: str) -> dict[str, object]:
        """A method's as plain values."""
        over = self.over(name)
        return {
            "rate_without_drops": {**self.mean(name).to_json(), "each": list(self.each[name])},
            "rate_without_drops_over_alone": None if over is None else over.to_json(),
        }
