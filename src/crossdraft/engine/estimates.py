"""Estimators of the policy: fading averages and lines of times, and acceptance rates.

Old observations fade in all estimates, since a running system changes; only `add`, `saw_…` and `forget` change them.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

LEAST, MOST = 1e-3, 1 - 1e-3  # probabilities: no token is hopeless or certain for good
ARRIVAL_PRIOR = 0.3  # imagined drafts of which each level came, so that levels never asked for are tried
PRIOR_POINTS = 2.0  # weight of measurements under other conditions, in points
DEEPEST = 64  # positions with a rate of their own
FASTER = 0.9  # of V(1) that a wider pass takes if V(1) is wrong; passes of equal times vary by less
AS_WELL = 0.98  # of the best explanation of times that a simpler one reaches
KNEES = (1, 2, 4, 6, 8, 12, 16)  # tokens of a pass after which more may take longer


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
    """V(n): a step from one token to two (another kernel, a mask), the same time up to a knee, and a line after it.

    Passes over few tokens are bound by memory, those over more by arithmetic (the roofline model: Williams 2009). The
    knee is the least of `KNEES` whose line explains the times as well as the best. The line is never steeper than from
    V(1) at the knee to the mean of the wider passes, as widths that hardly differ say nothing of the slope but noise.
    """

    one: Ema = field(default_factory=Ema)
    wide: dict[int, LinearFit] = field(default_factory=lambda: {knee: LinearFit() for knee in KNEES})
    knee: int = KNEES[0]

    def add(self, n: float, seconds: float) -> None:
        """Add a pass over n new tokens that took `seconds`."""
        if n == 1:
            self.one.add(seconds)
            return
        for knee, fit in self.wide.items():
            fit.add(max(0.0, n - knee), seconds)
        if seconds < FASTER * (self.one.value or 0.0):  # it was measured while something else ran
            self.one.add(seconds)
        explained = {knee: self._explained(knee) for knee in KNEES}
        self.knee = next(knee for knee in KNEES if explained[knee] >= AS_WELL * max(explained.values()))

    def _explained(self, knee: int) -> float:
        """Variation of all times, V(1) among them, that a line after this knee explains."""
        fit, weight = self.wide[knee], self.wide[knee].w + self.one.weight
        shared = fit.xy - fit.x * (fit.y + self.one.total) / weight
        spread = fit.xx - fit.x * fit.x / weight
        return shared * shared / spread if shared > 0 and spread > 1e-9 * fit.xx else 0.0

    def with_one(self, seconds: float) -> "PassTimes":
        """A copy with another V(1)."""
        return replace(self, one=Ema(weight=1.0, total=sane(seconds)))

    def as_prior(self) -> "PassTimes":
        """A copy for passes of another number of rows, without V(1), which weighs little against new measurements."""
        return PassTimes(wide={knee: fit.as_prior() for knee, fit in self.wide.items()}, knee=self.knee)

    @property
    def slope(self) -> float:
        """dV/dn after the knee."""
        line = self.wide[self.knee]
        if not line.x:
            return 0.0
        return min(line.slope, max(0.0, (line.y - line.w * (self.one.value or 0.0)) / line.x))

    def __call__(self, n: float) -> float:
        """V(n); 0 before the first pass."""
        line = self.wide[self.knee]
        if not line.w or (n <= 1 and self.one.value is not None):
            return self.one.value or 0.0
        return max(self.one.value or 0.0, (line.y + self.slope * (line.w * max(0.0, n - self.knee) - line.x)) / line.w)


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
