"""The arithmetic after every reported number: quartiles, pooled ratios, bootstrap intervals. Pure numpy."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError

DRAWS = 2000
INTERVALS = "[95 % bootstrap over pairs]"
FEW_PAIRS = 10  # with fewer, a bootstrap's intervals are too narrow
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median and quartiles of a sample."""

    median: float
    q1: float
    q3: float

    def ms(self) -> dict[str, float]:
        """Quartiles in seconds as milliseconds, in plain values."""
        return {name: round(getattr(self, name) * 1e3, 4) for name in ("median", "q1", "q3")}


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95 % bootstrap interval; it is always shown with the interval and n.

    Args:
        value: value over the whole sample.
        low, high: ends of the interval.
        n: number of independent units (pairs, scenes, clips) that were drawn from.

    >>> str(Interval(1.444, 1.4, 1.49, 40))
    '1.44 [1.40, 1.49; n=40]'
    """

    value: float
    low: float
    high: float
    n: int

    def to_json(self, name: str = "value") -> dict[str, object]:
        """Plain values: the value under `name`, `ci95`, and `n`; with more digits than are shown."""
        return {name: round(self.value, 6), "ci95": [round(self.low, 6), round(self.high, 6)], "n": self.n}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], name: str = "value") -> "Interval":
        """Read an interval that `to_json` wrote."""
        low, high = found["ci95"]
        return cls(found[name], low, high, found["n"])

    def scaled(self, factor: float) -> "Interval":
        """Interval times a factor: milliseconds from seconds, a per cent from a share.

        >>> str(Interval(0.5, 0.25, 1.0, 4).scaled(1e3))
        '500.00 [250.00, 1000.00; n=4]'
        """
        return Interval(factor * self.value, factor * self.low, factor * self.high, self.n)

    @property
    def inverse(self) -> "Interval":
        """Interval of 1 / value.

        >>> str(Interval(0.5, 0.25, 1.0, 4).inverse)
        '2.00 [1.00, 4.00; n=4]'
        """
        return Interval(1 / self.value, 1 / self.high, 1 / self.low, self.n)

    def shown(self, of: str = "", digits: int = 2) -> str:
        """Return value, interval and n as text.

        Args:
            of: units that n counts, in the plural.
            digits: number of digits behind the point.

        >>> Interval(1.444, 1.4, 1.49, 1).shown("clips", 1)
        '1.4 [no interval; n=1 clip]'
        """
        things = f" {of.removesuffix('s') if self.n == 1 else of}" if of else ""
        return f"{self.value:.{digits}f} [{self.ends(digits)}; n={self.n:,}{things}]"

    def ends(self, digits: int = 2) -> str:
        """Return the interval's ends as text; with n = 1 every draw is equal, and there is no interval."""
        return "no interval" if self.n == 1 else f"{self.low:.{digits}f}, {self.high:.{digits}f}"

    @property
    def below_one(self) -> bool:
        """True if a ratio and its whole interval lie below 1; false for n = 1, which has no interval.

        >>> Interval(0.9, 0.8, 0.95, 4).below_one, Interval(0.9, 0.9, 0.9, 1).below_one
        (True, False)
        """
        return self.n > 1 and self.high < 1

    def percent(self) -> str:
        """Format a share as per cent.

        >>> Interval(0.5, 0.25, 0.625, 40).percent()
        '50.0 % [25.0, 62.5; n=40]'
        """
        value, rest = self.scaled(100).shown(digits=1).split(" ", 1)
        return f"{value} % {rest}"

    def __str__(self) -> str:
        return self.shown()


def quartiles(values: Sequence[float]) -> Quartiles:
    """Median, first and third quartile, linearly interpolated.

    >>> quartiles([1, 2, 3, 4, 5])
    Quartiles(median=3.0, q1=2.0, q3=4.0)
    """
    q1, median, q3 = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return Quartiles(float(median), float(q1), float(q3))


def bootstrap(
    statistic: Callable[[Indices], NDArray[np.float64]], size: int, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Compute a statistic of `size` pairs and its percentile interval (Efron 1979).

    Pairs are drawn again, never single runs: repeats of one pair are no independent evidence.

    Args:
        statistic: takes indices of pairs [..., size], with repetitions, and returns the statistic [...] over them.
        size: number of pairs.
        seed: seed of the draws.
        draws: number of samples to draw.
    """
    chosen = np.random.default_rng(seed).integers(0, size, (draws, size))
    low, high = np.percentile(statistic(chosen), [2.5, 97.5])
    return Interval(float(statistic(np.arange(size))), float(low), float(high), size)


def over_pairs(statistic: Callable[..., NDArray[np.float64]], *columns: Sequence[float], seed: int = 0) -> Interval:
    """Interval of a statistic of columns with one value a pair, resampled by pair; it takes each column [..., size]."""
    values = [np.asarray(column, dtype=np.float64) for column in columns]
    return bootstrap(lambda chosen: statistic(*(one[chosen] for one in values)), len(values[0]), seed=seed)


def ratio(numerator: Sequence[float], denominator: Sequence[float], *, seed: int = 0) -> Interval:
    """Σ numerator / Σ denominator over pairs; numerator[i] and denominator[i] belong to the same pair.

    This is a ratio of sums, not a mean of ratios: the ratio of the times that a user waits for all answers.
    """
    return over_pairs(lambda top, bottom: top.sum(-1) / bottom.sum(-1), numerator, denominator, seed=seed)


def ratio_by(scenes: Sequence[Hashable], numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """`ratio` of runs; the runs of one scene (or clip) are drawn together, and n counts scenes."""
    top, bottom = by_scene(numerator, scenes), by_scene(denominator, scenes)
    return bootstrap(lambda chosen: top[chosen].sum(-1) / bottom[chosen].sum(-1), len(top))


def by_scene(values: Sequence[float], scenes: Sequence[Hashable]) -> NDArray[np.float64]:
    """Sum the values of each scene, in order of appearance.

    >>> by_scene([1, 2, 3], ["a", "b", "a"])
    array([4., 2.])

    Raises:
        CrossdraftError: the numbers of scenes and of values differ, or there is no value.
    """
    if len(values) != len(scenes) or not len(values):
        raise CrossdraftError(f"There are {len(values)} values of {len(scenes)} scenes; each needs the scene it is of.")
    numbers = {scene: number for number, scene in enumerate(dict.fromkeys(scenes))}
    chosen = np.array([numbers[scene] for scene in scenes])
    return np.bincount(chosen, np.asarray(values, dtype=np.float64)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95 % interval and the number of independent units behind it.

    Args:
        name: name for tables and JSON.
        interval: the value, its interval, and the number of scenes (sequences, clips) that were drawn from; repeated
            runs of one scene do not count.
        of: name of these units, in the plural.
        note: conditions that a reader must know, such as the tokenizer or the normalisation.

    Raises:
        CrossdraftError: nothing was measured, or the value or an end of the interval is NaN or infinite.

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
        """Mean of values over scenes: Σ values / number of values, with whole scenes drawn again.

        Args:
            name: name of the figure.
            values: value of each answer.
            scenes: scene of each answer.
            of, note: as in `Figure`.
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
            name: name of the figure.
            numerator, denominator: values of each run.
            scenes: scene of each run; runs of one scene are drawn together.
            of, note: as in `Figure`.
        """
        return cls(name, ratio_by(scenes, numerator, denominator), of, note)

    @property
    def n(self) -> int:
        """Number of independent units that were drawn from."""
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


def ratio_of_some(sums: Sequence[tuple[float, float]]) -> Interval | None:
    """Σ part / Σ whole over the pairs whose whole is not 0; `None` if there is no such pair.

    >>> str(ratio_of_some([(1, 2), (0, 0)])), ratio_of_some([(0, 0)])
    ('0.50 [no interval; n=1]', None)
    """
    some = [(part, whole) for part, whole in sums if whole]
    return ratio(*zip(*some, strict=True)) if some else None


def percentile(runs: Sequence[Sequence[float]], rank: float) -> Interval | None:
    """A percentile of the values of all runs together; whole runs are drawn. `None` if there is no value.

    >>> str(percentile([[1, 2], [], [3]], 50))
    '2.00 [1.50, 3.00; n=2]'
    """
    some = [values for values in runs if len(values)]
    if not some:
        return None
    values = np.concatenate([np.asarray(each, dtype=np.float64) for each in some])
    order, run_of = np.argsort(values), np.repeat(np.arange(len(some)), list(map(len, some)))

    def over(chosen: Indices) -> NDArray[np.float64]:
        """Weighted percentiles as by `np.percentile`: each value counts as often as its run was drawn."""
        drawn = (chosen[..., None] == np.arange(len(some))).sum(-2)
        below = drawn[..., run_of[order]].cumsum(-1)
        place = (below[..., -1] - 1) * rank / 100
        low, high = (values[order][(below <= end[..., None]).sum(-1)] for end in (np.floor(place), np.ceil(place)))
        return low + (high - low) * (place % 1)

    return bootstrap(over, len(some))


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Median of `numerator` over the median of `denominator`; runs made in turn are drawn together."""
    return over_pairs(lambda top, bottom: np.median(top, -1) / np.median(bottom, -1), numerator, denominator)


def median_added(values: Sequence[float], before: Sequence[float]) -> Interval:
    """Median of `values` minus the median of `before`; both answer the same questions, which are drawn together.

    >>> str(median_added([5, 5, 5], [3, 3, 3]))
    '2.00 [2.00, 2.00; n=3]'
    """
    return over_pairs(lambda after, first: np.median(after, -1) - np.median(first, -1), values, before)


def ratio_per_token(
    numerator: Sequence[float], its_tokens: Sequence[float], denominator: Sequence[float], own_tokens: Sequence[float]
) -> Interval:
    """(Σ numerator / Σ its tokens) / (Σ denominator / Σ own tokens) over pairs; both draw the same pairs.

    It is meant for answers that differ in length, as sampled ones do: a method with short answers is not faster.
    """

    def each(*columns: NDArray[np.float64]) -> NDArray[np.float64]:
        top, its, bottom, own = (column.sum(-1) for column in columns)
        return top / its / (bottom / own)

    return over_pairs(each, numerator, its_tokens, denominator, own_tokens)


def per_position(accepted: Sequence[Sequence[int]], offered: Sequence[Sequence[int]]) -> list[float]:
    """Share of drafted tokens accepted at each depth, pooled over answers.

    Args:
        accepted, offered: for each answer, counts by depth; answers may differ in their depth.

    >>> per_position([[2, 1], [1]], [[2, 2], [2]])
    [0.75, 0.5]
    """
    depth = max((len(row) for row in offered), default=0)
    totals = np.zeros((2, depth))
    for line, rows in enumerate((accepted, offered)):
        for row in rows:
            totals[line, : len(row)] += row
    return [float(got / tried) for got, tried in totals.T if tried]


def acceptance_figures(
    counts: Sequence[tuple[int, int]],
    accepted: Sequence[Sequence[int]],
    offered: Sequence[Sequence[int]],
    kinds: Sequence[str],
) -> dict[str, Any]:
    """Acceptance figures of a drafter over its answers, one for each pair, as plain values.

    They are τ with its interval, also by kind of question; the share accepted at each depth; and `depth`: the mean
    depth of its drafts over verify passes.

    Args:
        counts: tokens and verify passes of each answer.
        accepted, offered: as in `per_position`.
        kinds: kind of question of each answer.
    """
    taus = {kind: acceptance_length(of_kind(counts, kinds, kind)) for kind in dict.fromkeys(kinds)}
    return {
        **acceptance_length(counts).to_json("tau"),
        "by_kind": {kind: tau.to_json("tau") for kind, tau in taus.items()},
        "accepted_per_position": [round(share, 3) for share in per_position(accepted, offered)],
        "depth": round(sum(map(sum, offered)) / max(1, sum(passes for _, passes in counts)), 3),
    }


def of_kind(counts: Sequence[tuple[int, int]], kinds: Sequence[str], kind: str) -> list[tuple[int, int]]:
    """Counts of the pairs about one kind of question."""
    return [count for count, own in zip(counts, kinds, strict=True) if own == kind]


def acceptance_length(counts: Sequence[tuple[int, int]]) -> Interval:
    """τ, mean acceptance length: Σ tokens of the answers / Σ verify passes, drawn over pairs.

    Tokens include the bonus tokens, but none that a pass verified after an answer's end.

    Args:
        counts: tokens and passes of each pair.

    >>> str(acceptance_length([(5, 2), (5, 2)]))
    '2.50 [2.50, 2.50; n=2]'
    """
    return bootstrap(lambda chosen: pooled_tau(counts, chosen), len(counts))


def tau_ratio(numerator: Sequence[tuple[int, int]], denominator: Sequence[tuple[int, int]]) -> Interval:
    """τ of one drafter over τ of another on the same pairs; both draw the same pairs."""
    return bootstrap(lambda chosen: pooled_tau(numerator, chosen) / pooled_tau(denominator, chosen), len(numerator))


def pooled_tau(counts: Sequence[tuple[int, int]], chosen: Indices) -> NDArray[np.float64]:
    """[...] Σ tokens / Σ passes over pairs chosen [..., n]; 1 where there was no pass."""
    tokens, passes = np.moveaxis(np.asarray(counts, dtype=np.float64)[chosen].sum(-2), -1, 0)
    return np.where(passes > 0, tokens / np.maximum(passes, 1), 1.0)
