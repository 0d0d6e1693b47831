"""Paired comparisons over scenes: significance test, effect size, and the smallest detectable difference.

The unit is a scene: repeated runs of a scene are summed first, for they are no independent evidence. Times are
compared by the logarithm of their ratio, so that half as fast and twice as fast are equally far from equality.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.statistics import Figure, by_scene

ALPHA = 0.05  # level of two-sided tests
POWER = 0.8  # power of the minimum detectable effect
COMPARISON_HEADS = ("p", "d_z", "detectable")
COMPARISON_NOTE = (
    "p: Wilcoxon's signed-rank test over scenes, with Holm's correction over all rows that have one; d_z: mean of the "
    "scenes' log ratios over their standard deviation; detectable: the smallest change of the ratio that so many "
    "scenes of this spread show in four of five experiments, at the strictest level of Holm's correction."
)


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Comparison of one method with another on the same scenes.

    Args:
        ratio: Σ cost of the baseline / Σ cost of the method; above 1, the method is better.
        p: p value of Wilcoxon's signed-rank test on the scenes' log ratios.
        adjusted_p: `p` after Holm's correction over all comparisons that were made together.
        effect: Cohen's d_z: mean log ratio over its standard deviation.
        rank_biserial: (sum of ranks in favour - sum against) / sum of all ranks, -1 to 1.
        detectable: smallest change of the ratio, as a share, that this number of scenes with this spread shows in four
            of five experiments at the strictest level of Holm's correction, α over the number of comparisons; a smaller
            change may exist and not be seen.
    """

    ratio: Figure
    p: float
    adjusted_p: float
    effect: float
    rank_biserial: float
    detectable: float

    @property
    def differs(self) -> bool:
        """True if the methods differ: both the interval and the corrected test say so."""
        interval = self.ratio.interval
        return self.adjusted_p < ALPHA and not interval.low <= 1 <= interval.high

    def __str__(self) -> str:
        seen = "differs" if self.differs else f"no difference seen; {self.detectable:.1%} would be"
        return f"{self.ratio}; p = {self.adjusted_p:.2g} (Wilcoxon, Holm), d_z = {self.effect:.2f}: {seen}"


@dataclass(frozen=True, slots=True)
class PairedCosts:
    """Costs that one comparison is computed from.

    Args:
        baseline, method: seconds (or another positive cost) of each run of either, on the same scenes in one order.
        scenes: scene of each run.
    """

    baseline: Sequence[float]
    method: Sequence[float]
    scenes: Sequence[Hashable]


def comparison_cells(found: PairedComparison | None) -> tuple[str, ...]:
    """Cells under `COMPARISON_HEADS`; dashes where nothing could be tested."""
    if found is None:
        return ("–",) * len(COMPARISON_HEADS)
    return f"{found.adjusted_p:.2g}", f"{found.effect:.2f}", f"{found.detectable:.1%}"


def comparison_json(found: PairedComparison | None) -> dict[str, float | None]:
    """Return a comparison's figures as plain values; None for each where nothing could be tested."""
    names = {"p_wilcoxon": "p", "p_holm": "adjusted_p", "cohens_dz": "effect", "rank_biserial": "rank_biserial",
             "minimum_detectable": "detectable"}  # fmt: skip
    return {key: None if found is None else getattr(found, name) for key, name in names.items()}


def compare_paired(
    baseline: Sequence[float], methods: Mapping[str, Sequence[float]], scenes: Sequence[Hashable]
) -> dict[str, PairedComparison]:
    """Compare every method with the baseline, with Holm's correction over all, for `detectable` too.

    Args:
        baseline: seconds (or another positive cost) of each run.
        methods: seconds of each run of each method, on the same scenes in the same order.
        scenes: scene of each run.

    Raises:
        CrossdraftError: lengths that differ, a cost that is not above 0, or too few scenes for any test.
    """
    if (here := len(by_scene(baseline, scenes))) < (least := least_scenes(len(methods))):
        raise CrossdraftError(
            f"{here} scenes cannot show a difference of {len(methods)} methods, whatever it is; compare at least "
            f"{least}."
        )
    return compare_together({name: PairedCosts(baseline, values, scenes) for name, values in methods.items()})


def compare_together(pairs: Mapping[str, PairedCosts]) -> dict[str, PairedComparison]:
    """Compare pairs of methods that each have their own baseline, with Holm's correction over all of them.

    Pairs with fewer scenes than `least_scenes` are left out: no test of so few scenes can show a difference.

    Raises:
        CrossdraftError: lengths that differ, or a cost that is not above 0.
    """
    least = least_scenes(len(pairs))
    shown = {name: pair for name, pair in pairs.items() if len(set(pair.scenes)) >= least}
    logs = {name: _log_ratio(pair, name) for name, pair in shown.items()}
    p_values = {name: wilcoxon(log) for name, log in logs.items()}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return {
        name: PairedComparison(
            Figure.ratio(name, pair.baseline, pair.method, pair.scenes),
            p_values[name],
            adjusted[name],
            cohens_dz(logs[name]),
            rank_biserial(logs[name]),
            math.expm1(minimum_detectable(len(logs[name]), ALPHA / len(shown)) * float(np.std(logs[name], ddof=1))),
        )
        for name, pair in shown.items()
    }


def least_scenes(methods: int) -> int:
    """Fewest scenes with which a signed-rank test corrected for `methods` tests can reach p < 0.05 (p ≥ 2 / 2^n).

    >>> least_scenes(1), least_scenes(2), least_scenes(40)
    (6, 7, 11)
    """
    return next(n for n in range(1, 64) if 2 * max(1, methods) / 2**n < ALPHA)


def paired_difference(
    name: str, values: Sequence[float], control: Sequence[float], scenes: Sequence[Hashable]
) -> tuple[Figure, float]:
    """Return the mean of value - control over answers, and Wilcoxon's p of the scenes' differences.

    It is meant for counts, which may be 0: accepted tokens of a drafter and of one that cannot know the answer.
    """
    differences = [value - other for value, other in zip(values, control, strict=True)]
    return Figure.mean(name, differences, scenes), wilcoxon(by_scene(differences, scenes))


def wilcoxon(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """p of the two-sided signed-rank test (Wilcoxon 1945); zero differences are dropped; 1 if no others are left.

    >>> wilcoxon([1, 2, 3, 4, 5, 6])
    0.03125
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if not len(values):
        return 1.0
    from scipy import stats

    found: Any = stats.wilcoxon(values)
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p values after Holm's step-down correction for the number of tests (Holm 1979), in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def cohens_dz(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """Mean of paired differences over their standard deviation (Cohen 1988); 0 where they are all 0.

    >>> round(cohens_dz([1, 2, 3]), 3)
    2.0
    """
    values = np.asarray(differences, dtype=np.float64)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    mean = float(values.mean())
    if spread <= 1e-12 * max(1.0, abs(mean)):
        return 0.0 if mean == 0 else math.copysign(1e6, mean)  # without any spread d_z has no bound
    return mean / spread


def rank_biserial(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """(Σ ranks of positive - Σ ranks of negative) / Σ ranks of absolute differences (Kerby 2014); 0 if all are 0.

    >>> round(rank_biserial([1, 2, -3]), 3)
    0.0
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if not len(values):
        return 0.0
    from scipy import stats

    ranks = stats.rankdata(np.abs(values))
    return float((ranks * np.sign(values)).sum() / ranks.sum())


def minimum_detectable(n: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """Smallest d_z that a two-sided paired t-test of `n` pairs detects with this power (noncentral t).

    Args:
        n: number of pairs, at least 2.
        alpha: level of the test.
        power: probability of detecting it.

    >>> round(minimum_detectable(34), 3)
    0.495
    """
    from scipy import optimize, stats

    if n < 2:
        raise CrossdraftError(f"{n} pairs have no spread; measure at least 2.")
    limit = float(stats.t.ppf(1 - alpha / 2, n - 1))

    def missing(shift: float) -> float:  # the other tail adds less than a millionth
        return float(stats.nct.sf(limit, n - 1, shift)) - power

    return float(optimize.brentq(missing, 1e-6, 6 * limit)) / math.sqrt(n)  # pyright: ignore[reportArgumentType]


def _log_ratio(pair: PairedCosts, name: str) -> NDArray[np.float64]:
    baseline, method = by_scene(pair.baseline, pair.scenes), by_scene(pair.method, pair.scenes)
    if len(baseline) != len(method) or not (baseline > 0).all() or not (method > 0).all():
        raise CrossdraftError(f"{name} was not measured on the same scenes, or took no time on one; measure it again.")
    return np.log(baseline / method)
