"""Estimators of the policy: formulas, fading averages of times, acceptance rates, and a schedule of exploration.

All estimates forget, since a running system changes; nothing but `add`, `saw_…` and `began_…` changes anything.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

LEAST, MOST = 1e-3, 1 - 1e-3  # probabilities: no token is hopeless or certain for good
ARRIVAL_PRIOR = 0.3  # part of a draft that is imagined to have come: what was never asked for is worth asking
PRIOR_POINTS = 2.0  # weight of what was measured under other conditions, in points
DEEPEST = 64  # positions with a rate of their own
# Without a draft a probe of so many levels is made now and then: what probes are expected to lose is this share of the
# time, and from one to the next there are at least and at most so many rounds.
PROBE_DEPTH, PROBE_SHARE = 2, 0.02
PROBE_LEAST, PROBE_MOST = 4, 256
# With a draft every so many rounds one goes without: until it is known what that takes, and to see if that changes.
PLAIN_FIRST, PLAIN_EVERY = 16, 256
HIDING_EVERY = 32  # requests without a hidden draft after which one is tried
READING_EVERY = 32  # of the requests that the drafter does not read, every so many is read


def expected_accepted(rates: Sequence[float]) -> float:
    """E[a] = Σ_i Π_{j≤i} h_j, the expected accepted prefix of a chain with these acceptance rates by depth.

    >>> expected_accepted([0.5, 0.5])
    0.75
    """
    return sum(accumulate(rates, operator.mul))


def steady_speedup(alpha: float, gamma: int, c: float, verify: float) -> float:
    """S = [(1 − α^{γ+1}) / (1 − α)] / [γc + V(γ+1)/t]; `verify` is V(γ+1)/t (Leviathan et al. 2023, Theorem 3.8)."""
    emitted = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return emitted / (gamma * c + verify)


def hidden_time(prefill: float, drafting: float, verify: float, accepted: float, new_tokens: int, step: float) -> float:
    """T = max(P_T, P_D + drafting) + V(k+1) + (N − 2 − a)⁺·t: an answer with one hidden draft, plain afterwards.

    All times in one unit; `drafting` includes the drafter's own prefill.
    """
    return max(prefill, drafting) + verify + max(0.0, new_tokens - 2 - accepted) * step


def hiding_bound(prefill: float, total: float) -> float:
    """1/ρ: no trick that hides work in the prefill is faster than this, ρ = the prefill's share of the baseline."""
    return total / prefill


@dataclass
class LinearFit:
    """Least squares of y = a + b·x over a fading window.

    Args:
        decay: the weight that an old point keeps per new one.
        anchor: weight of a point at (0, 0) that never fades: of nothing costs nothing.
        ridge: what is added to the variance of x (ridge regression): points that hardly differ in x tell nothing
            of the slope, however much they differ in y.
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
        """Add a point; what is not finite, or below 0, was not measured but came of a broken clock."""
        x, y = sane(x), sane(y)
        for name, value in (("w", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, getattr(self, name) * self.decay + value)

    def as_prior(self, times: float = 1.0) -> "LinearFit":
        """A copy for something similar, `times` as large: it weighs little against what is measured there."""
        share = min(1.0, PRIOR_POINTS / self.w) if self.w else 0.0
        sums = {name: share * getattr(self, name) for name in ("w", "x", "y", "xx", "xy")}
        return replace(self, **sums | {name: times * sums[name] for name in ("y", "xy")})

    @property
    def slope(self) -> float:
        """b, never negative: more is not faster."""
        w = self.w + self.anchor
        spread = w * self.xx - self.x * self.x
        if spread <= 1e-9 * w * self.xx:
            return 0.0
        return max(0.0, (w * self.xy - self.x * self.y) / (spread + self.ridge * w * w))

    def __call__(self, x: float) -> float:
        """a + b·x, never negative: nothing takes less than no time, wherever the line crosses 0. 0 before any point."""
        w = self.w + self.anchor
        return max(0.0, self.y + self.slope * (x * w - self.x)) / w if self.w else 0.0


@dataclass
class Ema:
    """A fading mean."""

    decay: float = 0.9
    weight: float = 0.0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add a value; of a time that is not finite, or below 0, nothing is learned but that it was."""
        value = sane(value)
        self.weight = self.weight * self.decay + 1
        self.total = self.total * self.decay + value

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.weight if self.weight else None


@dataclass
class PassTimes:
    """V(n): a step from one token to two (another kernel, a mask), and a line after it.

    The line is never steeper than from V(1) to the mean of the wider passes: widths that hardly differ tell nothing
    of it, whatever their noise says.
    """

    one: Ema = field(default_factory=Ema)
    wide: LinearFit = field(default_factory=LinearFit)

    def add(self, n: float, seconds: float) -> None:
        """A pass over n new tokens took so long."""
        if n == 1:
            self.one.add(seconds)
        else:
            self.wide.add(n, seconds)

    def with_one(self, seconds: float) -> "PassTimes":
        """A copy with another V(1)."""
        return PassTimes(Ema(weight=1.0, total=sane(seconds)), self.wide)

    @property
    def slope(self) -> float:
        """dV/dn after the step."""
        if not self.wide.w:
            return 0.0
        n, seconds = self.wide.x / self.wide.w, self.wide.y / self.wide.w
        if self.one.value is None:
            return min(self.wide.slope, seconds / n)
        return min(self.wide.slope, max(0.0, (seconds - self.one.value) / (n - 1)))

    def __call__(self, n: float) -> float:
        """V(n); 0 before the first pass."""
        if not self.wide.w or (n <= 1 and self.one.value is not None):
            return self.one.value or 0.0
        mean, seconds = self.wide.x / self.wide.w, self.wide.y / self.wide.w
        return max(self.one.value or 0.0, seconds + self.slope * (n - mean))


@dataclass
class AcceptanceByDepth:
    """Rates of drafted levels, by position: how often one is sent when asked for, and accepted when verified.

    A position that few drafts have reached lately is taken to be like all others; so short drafts can learn that
    longer ones have begun to pay.
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
        """The first `kept` levels were accepted; the next one, if there was one, was not."""
        _count(self.verified, verified, self.decay)
        _count(self.kept, kept, self.decay)
        for level in range(verified):
            self.rate.add(float(level < kept))

    @property
    def alpha(self) -> float:
        """Acceptance rate of a verified level, wherever it stands."""
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
        """[depth] probability of each level to be sent when asked for."""
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
        prior: k, so many failures as expected are imagined: one piece of bad luck says little of a whole request.
        decay: the weight that the past keeps at every draft, and at every round without one, so that drafting which
            was given up for bad luck is taken up again.
    """

    prior: float = 3.0
    decay: float = 0.95
    failures: float = 0.0
    exposure: float = 0.0

    def add(self, probs: Sequence[float], kept: int) -> None:
        """Levels with these probabilities were verified, the first `kept` accepted; one that fails fails half way."""
        surprisals = [-math.log(min(MOST, max(LEAST, prob))) for prob in probs]
        self.forget()
        self.failures += kept < len(surprisals)
        self.exposure += sum(surprisals[:kept]) + sum(surprisals[kept:][:1]) / 2

    def forget(self) -> None:
        """A round has passed."""
        self.failures *= self.decay
        self.exposure *= self.decay

    @property
    def value(self) -> float:
        """z; 1 = as expected."""
        return (self.prior + self.failures) / (self.prior + self.exposure)


@dataclass
class Exploration:
    """When to try what does not seem to pay, and to go without what does: else no change would be noticed."""

    idle: int = 0  # rounds since the last draft
    drafted: int = 0  # rounds with a draft since the last without
    unhidden: int = 0  # requests without a hidden draft
    unread: int = 0  # requests that the drafter did not read

    def levels_asked(
        self, planned: int, limit: int, rows: int = 1, *, plain_known: bool = False, loss: float = 0.0
    ) -> int:
        """Number of levels to ask for in this round, given the number planned.

        Where drafting loses time it is off, but for a short draft now and then that detects when this has changed: the
        larger the expected loss, the rarer. Where drafting always pays, a round without a draft now and then measures
        what it saves.

        Args:
            planned, limit: levels; no more than `limit` are asked for.
            rows: requests that share the pass, which is as wide as its widest draft; several never go without.
            plain_known: it is known what a round without a draft takes.
            loss: what a short draft is expected to lose, in passes.
        """
        if limit < 1:
            return 0
        if planned:
            plain = rows == 1 and self.drafted + 1 >= (PLAIN_EVERY if plain_known else PLAIN_FIRST)
            return 0 if plain else planned
        gap = min(PROBE_MOST, max(PROBE_LEAST, rows * loss / PROBE_SHARE))
        return min(limit, PROBE_DEPTH) if self.idle + 1 >= gap else 0

    @property
    def tries_hiding(self) -> bool:
        """True if the next request has a hidden draft even if that does not seem to pay."""
        return self.unhidden + 1 >= HIDING_EVERY

    @property
    def tries_reading(self) -> bool:
        """True if the drafter prefills the next request even if that does not seem to pay."""
        return self.unread + 1 >= READING_EVERY

    def began_round(self, planned: int, asked: int) -> None:
        """A round is under way in which so many levels were planned, and so many are asked for."""
        self.idle = 0 if planned or asked else self.idle + 1
        self.drafted = self.drafted + 1 if planned and asked else 0

    def began_request(self, mode: str, *, reads: bool) -> None:
        """A request is taken up: whether the drafter reads it, and when it drafts hidden."""
        self.unread = 0 if reads else self.unread + 1
        self.unhidden = 0 if reads and mode != "off" else self.unhidden + 1


def sane(value: float) -> float:
    """The value if it may be a time or a count, else 0: a clock that was set back must not make a plan.

    >>> sane(0.5), sane(-1.0), sane(math.nan), sane(math.inf)
    (0.5, 0.0, 0.0, 0.0)
    """
    return value if math.isfinite(value) and value > 0 else 0.0


def _count(counts: list[float], first: int, decay: float) -> None:
    """All fade, the first ones get one more."""
    counts[:] = [count * decay + (level < first) for level, count in enumerate(counts)]
