"""Estimators of the policy: fading averages and lines of times, and acceptance rates.

Old observations fade in all estimates, since a running system changes; only `add`, `saw_…` and `forget` change them.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

LEAST, MOST = 1e-3, 1 - 1e-3  # probabilities: no token is hopeless or certain for good
ARRIVAL_PRIOR = 0.3  # imagined drafts of which each level came, so that levels never asked for are tried
PRIOR_POINTS = 2.0  # weight of measurements under other conditions, in points
DEEPEST = 64  # positions with a rate of their own
WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 256)  # tokens of a pass at which the shape of V has a corner
UNUSUAL = 2.0  # a pass counts as at most so many times its expected time; beyond that the machine stopped it
SEEN = 50.0  # most passes that a corner rests on, so that it can still change


def expected_accepted(rates: Sequence[float]) -> float:
    """E[a] = Σ_i Π_{j≤i} h_j, the expected accepted prefix of a chain with these acceptance rates by depth.

    >>> expected_accepted([0.5, 0.5])
    0.75
    """
    return sum(accumulate(rates, operator.mul))


@dataclass
class LinearFit:
    """Least squares of y = a + b·x over a fading window.

    Args:
        decay: the weight that an old point keeps per new one.
        anchor: weight of a point at (0, 0) that never fades: drafting nothing costs nothing.
        ridge: number added to the variance of x (ridge regression): points that hardly differ in x tell nothing of the
            slope, however much they differ in y.
    """

    decay: float = 0.98
    anchor: float = 0.0
    ridge: float = 0.0
    w: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a point; a value that is not finite, or below 0, comes from a broken clock and counts as 0."""
        x, y = sane(x), sane(y)
        for name, value in (("w", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, getattr(self, name) * self.decay + value)

    def as_prior(self) -> "LinearFit":
        """A copy for something similar, which weighs little against new measurements."""
        share = min(1.0, PRIOR_POINTS / self.w) if self.w else 0.0
        return replace(self, **{name: share * getattr(self, name) for name in ("w", "x", "y", "xx", "xy")})

    @property
    def slope(self) -> float:
        """b, at least 0, as larger passes are not faster."""
        w = self.w + self.anchor
        spread = w * self.xx - self.x * self.x
        if spread <= 1e-9 * w * self.xx:
            return 0.0
        return max(0.0, (w * self.xy - self.x * self.y) / (spread + self.ridge * w * w))

    def __call__(self, x: float) -> float:
        """a + b·x, at least 0, as no time is negative; 0 before any point."""
        w = self.w + self.anchor
        return max(0.0, self.y + self.slope * (x * w - self.x)) / w if self.w else 0.0


@dataclass
class Ema:
    """A fading mean."""

    decay: float = 0.9
    weight: float = 0.0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add a value; one that is not finite, or below 0, counts as 0."""
        value = sane(value)
        self.weight = self.weight * self.decay + 1
        self.total = self.total * self.decay + value

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.weight if self.weight else None


@dataclass
class PassTimes:
    """V(n) = V(1) · shape(n): a level that follows the machine, and a shape that belongs to the model and its kernels.

    Few tokens take as long as one, since a pass reads all weights for them; more take longer in steps, as arithmetic
    bounds it and kernels take several at a time (the roofline model: Williams 2009). The shape is a line through the
    widths that were seen, flat beyond the widest, and never falls: widths whose ratios do share their mean (isotonic
    regression: Barlow 1972). Every pass moves the level; it moves the ratio of its width the less, the more passes that
    ratio rests on.

    Args:
        one: V(1), a fading mean over passes of all widths.
        ratios: [len(WIDTHS)] V(n) / V(1).
        weights: [len(WIDTHS)] passes that each ratio rests on; 0 = not seen.
        idle: [len(WIDTHS)] passes since one that was as wide.
    """

    one: Ema = field(default_factory=Ema)
    ratios: list[float] = field(default_factory=lambda: [1.0] * len(WIDTHS))
    weights: list[float] = field(default_factory=lambda: [0.0] * len(WIDTHS))
    idle: list[int] = field(default_factory=lambda: [0] * len(WIDTHS))

    def add(self, n: float, seconds: float) -> None:
        """Add a pass over n new tokens that took `seconds`."""
        n, seconds, one = max(1.0, min(n, WIDTHS[-1])), sane(seconds), self.one.value
        self.idle = [passes + 1 if width > n else 0 for width, passes in zip(WIDTHS, self.idle, strict=True)]
        if one and n > 1:
            above = bisect_left(WIDTHS, n)
            if any(self.weights[above:]):
                seconds = min(seconds, UNUSUAL * self(n))
            share = (n - WIDTHS[above - 1]) / (WIDTHS[above] - WIDTHS[above - 1])
            error = seconds / one - self.shape(n)
            for corner, part in ((above, share), (above - 1, 1 - share)):
                self.weights[corner] += part
                self.ratios[corner] += error * part / (self.weights[corner] or 1.0)
                self.weights[corner] = min(SEEN, self.weights[corner])
            self._settle()
        elif one:
            seconds = min(seconds, UNUSUAL * one)
        self.one.add(seconds / self.shape(n))

    def measure(self, seconds: Mapping[int, float], passes: float) -> None:
        """Set the shape by times of passes over some of `WIDTHS`, 1 among them; each counts as so many passes."""
        for width, taken in seconds.items():
            corner = WIDTHS.index(width)
            self.ratios[corner], self.weights[corner] = taken / seconds[1], passes
        self._settle()

    def _settle(self) -> None:
        """Make the ratios of the widths that were seen rise, and put those of the others onto the line through them."""
        seen = [corner for corner, passes in enumerate(self.weights) if corner and passes]
        levels: list[tuple[float, float, int]] = []  # ratio, passes and number of the widths that share it
        for corner in seen:
            level, passes, count = self.ratios[corner], self.weights[corner], 1
            while levels and levels[-1][0] > level:
                higher, more, widths = levels.pop()
                level, passes, count = (higher * more + level * passes) / (more + passes), more + passes, count + widths
            levels.append((level, passes, count))
        rising = [max(1.0, level) for level, _, count in levels for _ in range(count)]
        self.ratios = np.interp(WIDTHS, [1, *(WIDTHS[corner] for corner in seen)], [1.0, *rising]).tolist()

    def shape(self, n: float) -> float:
        """V(n) / V(1)."""
        above = bisect_left(WIDTHS, n)
        if above in (0, len(WIDTHS)):
            return self.ratios[above and -1]
        low, ratio = WIDTHS[above - 1], self.ratios[above - 1]
        return ratio + (n - low) / (WIDTHS[above] - low) * (self.ratios[above] - ratio)

    def tried(self, fading: float) -> "PassTimes":
        """V by which widths are tried again: what they take beyond V(1), times `fading` for each idle pass."""
        faded = [1 + (ratio - 1) * fading**passes for ratio, passes in zip(self.ratios, self.idle, strict=True)]
        return replace(self, ratios=faded)

    def of_rows(self, more: float, seconds: float | None = None) -> "PassTimes":
        """V of a row where `more` times as many rows share a pass, from the tokens of all of them.

        It weighs little against new measurements. `seconds`: V(1), if it is known.
        """
        made, least = PassTimes(), self.shape(more)
        if self.one.value:
            widest = max((width for width, seen in zip(WIDTHS, self.weights, strict=True) if seen), default=1)
            known = [width for width in WIDTHS if width == 1 or width * more <= widest]
            made.measure({width: self.shape(more * width) / least for width in known}, PRIOR_POINTS)
            made.one.add(self.one.value * least / more if seconds is None else seconds)
        return made

    @property
    def slope(self) -> float:
        """dV/dn of the widest passes."""
        return (self.one.value or 0.0) * (self.ratios[-1] - self.ratios[-2]) / (WIDTHS[-1] - WIDTHS[-2])

    def __call__(self, n: float) -> float:
        """V(n); 0 before the first pass."""
        return (self.one.value or 0.0) * self.shape(n)


@dataclass
class AcceptanceByDepth:
    """Rates of drafted levels by position: the share sent when asked for, and the share accepted when verified.

    A position that few drafts have reached lately gets the mean rate of all; so the policy can learn from short drafts
    that longer ones have begun to pay.
    """

    decay: float = 0.98
    prior: float = 8.0
    rate: Ema = field(default_factory=lambda: Ema(decay=0.99, weight=4.0, total=4.0 * 0.8))  # imagined at first
    asked: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    sent: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    verified: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    kept: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)

    def saw_draft(self, asked: int, sent: int) -> None:
        """Record a draft: `sent` of the `asked` levels came."""
        _count(self.asked, asked, self.decay)
        _count(self.sent, min(asked, sent), self.decay)

    def saw_acceptance(self, verified: int, kept: int) -> None:
        """Record a verified draft: its first `kept` levels were accepted; the next level, if any, was not."""
        _count(self.verified, verified, self.decay)
        _count(self.kept, kept, self.decay)
        for level in range(verified):
            self.rate.add(float(level < kept))

    @property
    def alpha(self) -> float:
        """Acceptance rate of verified levels, over all positions."""
        return min(MOST, max(LEAST, self.rate.total / self.rate.weight))

    def rates(self, depth: int) -> list[float]:
        """[depth] acceptance rate of each level: its probability, given that the levels above it were accepted."""
        known = min(depth, DEEPEST)
        found = [
            (self.kept[level] + self.prior * self.alpha) / (self.verified[level] + self.prior) for level in range(known)
        ]
        return [min(MOST, max(LEAST, rate)) for rate in found] + [self.alpha] * (depth - known)

    def path_probs(self, depth: int) -> list[float]:
        """[depth] probability that each level of a chain and all above it are accepted."""
        return list(accumulate(self.rates(depth), operator.mul))

    def arrivals(self, depth: int) -> list[float]:
        """[depth] probability that each level is sent when asked for."""
        known = min(depth, DEEPEST)
        found = [(self.sent[level] + ARRIVAL_PRIOR) / (self.asked[level] + ARRIVAL_PRIOR) for level in range(known)]
        return found + [1.0] * (depth - known)


@dataclass
class RequestDifficulty:
    """Estimate of how much likelier than expected the drafts of one request are to fail.

    A request's acceptance rates are the expected ones to the power of its difficulty z: the shared frailty model of
    survival analysis (Vaupel 1979; Clayton 1978), where z multiplies every −log p. With z ~ Gamma(k, k) beforehand, the
    estimate is (k + failures) / (k + Σ −log p), the sum over the levels that were verified.

    Args:
        prior: k, number of imagined failures at the expected rate, so that one failure says little of a request.
        decay: the weight that the past keeps at every draft, and at every round without one, so that drafting which
            was given up for bad luck is taken up again.
    """

    prior: float = 3.0
    decay: float = 0.95
    failures: float = 0.0
    exposure: float = 0.0

    @classmethod
    def known(cls, value: float) -> "RequestDifficulty":
        """A request of this difficulty."""
        made = cls()
        made.failures = made.prior * (value - 1)
        return made

    def add(self, probs: Sequence[float], kept: int) -> None:
        """Add verified levels with these probabilities, the first `kept` accepted; a failed level counts half."""
        surprisals = [-math.log(min(MOST, max(LEAST, prob))) for prob in probs]
        self.forget()
        self.failures += kept < len(surprisals)
        self.exposure += sum(surprisals[:kept]) + sum(surprisals[kept:][:1]) / 2

    def forget(self) -> None:
        """Let a round pass: old observations fade."""
        self.failures *= self.decay
        self.exposure *= self.decay

    @property
    def value(self) -> float:
        """z; 1 = as expected."""
        return (self.prior + self.failures) / (self.prior + self.exposure)


def sane(value: float) -> float:
    """The value if it may be a time or a count, else 0: a clock that was set back must not make a plan.

    >>> sane(0.5), sane(-1.0), sane(math.nan), sane(math.inf)
    (0.5, 0.0, 0.0, 0.0)
    """
    return value if math.isfinite(value) and value > 0 else 0.0


def _count(counts: list[float], first: int, decay: float) -> None:
    """Let all counts fade, and add 1 to the first `first` ones."""
    counts[:] = [count * decay + (level < first) for level, count in enumerate(counts)]
