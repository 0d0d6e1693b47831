"""A reported number, which is never printed without its interval and what it was measured on."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.statistics import Interval, ratio_by


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95 % interval and the number of independent things behind it.

    Args:
        name: what it is, for tables and JSON.
        interval: the value, how far it may be off, and how many scenes (sequences, clips) were drawn from; repeated
            runs of one add nothing.
        of: what those are called.
        note: what a reader must know: a tokenizer, a normalisation.

    Raises:
        CrossdraftError: nothing was measured, or the value or a bound is no number.

    >>> str(Figure("speed-up", Interval(1.44, 1.4, 1.49, 40)))
    'speed-up 1.44 [1.40, 1.49; n=40 scenes]'
    """

    name: str
    interval: Interval
    of: str = "scenes"
    note: str = ""

    def __post_init__(self) -> None:
        numbers = (self.interval.value, self.interval.low, self.interval.high)
        if self.n < 1 or not all(map(math.isfinite, numbers)):
            raise CrossdraftError(
                f"{self.name} of {self.n} {self.of} is {self.interval}, which is no figure; measure more of them."
            )

    @classmethod
    def mean(
        cls, name: str, values: Sequence[float], scenes: Sequence[Hashable], *, of: str = "scenes", note: str = ""
    ) -> Self:
        """The mean of values over scenes: Σ values / number of values, whole scenes drawn again.

        Args:
            name: of the figure.
            values: of each answer.
            scenes: of each answer.
            of, note: as of a figure.
        """
        return cls.ratio(name, values, [1.0] * len(values), scenes, of=of, note=note)

    @classmethod
    def ratio(
        cls,
        name: str,
        numerator: Sequence[float],
        denominator: Sequence[float],
        scenes: Sequence[Hashable],
        *,
        of: str = "scenes",
        note: str = "",
    ) -> Self:
        """Σ numerator / Σ denominator, a ratio of sums; its interval draws whole scenes again.

        Args:
            name: of the figure.
            numerator, denominator: of each run.
            scenes: of each run; runs of one scene are drawn together.
            of, note: as of a figure.
        """
        return cls(name, ratio_by(scenes, numerator, denominator), of, note)

    @property
    def n(self) -> int:
        """Number of independent things that were drawn from."""
        return self.interval.n

    @property
    def value(self) -> float:
        """The value alone, to compute with."""
        return self.interval.value

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        about = {"note": self.note} if self.note else {}
        return {"name": self.name, **self.interval.to_json(), "of": self.of, **about}

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.name} {self.interval.shown(self.of)}{note}"
