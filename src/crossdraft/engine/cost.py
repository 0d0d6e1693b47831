"""When drafting pays: the formulas, and a model of the running system's own timings that feeds them.

Notation: t = V(1) the time of one target pass over one token, V(n) over n; d the time of one drafting step, c = d/t;
h_j the probability that draft position j is accepted given that the ones before it were.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


def expected_accepted(hazards: Sequence[float]) -> float:
    """E[a] = Σ_i Π_{j≤i} h_j, the expected accepted prefix of a chain with the given conditional acceptances.

    >>> expected_accepted([0.5, 0.5])
    0.75
    """
    total, reach = 0.0, 1.0
    for hazard in hazards:
        reach *= hazard
        total += reach
    return total


def steady_speedup(alpha: float, gamma: int, c: float, verify: float) -> float:
    """S = [(1 − α^{γ+1}) / (1 − α)] / [γc + V(γ+1)/t]; `verify` is V(γ+1)/t (Leviathan et al. 2023, Theorem 3.8)."""
    emitted = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return emitted / (gamma * c + verify)


def hidden_time(
    prefill: float, drafting: float, verify: float, accepted: float, new_tokens: int, step: float
) -> float:
    """T = max(P_T, P_D + drafting) + V(k+1) + (N − 2 − a)⁺·t: an answer with one hidden draft, plain afterwards.

    All times in one unit; `drafting` includes the drafter's own prefill.
    """
    return max(prefill, drafting) + verify + max(0.0, new_tokens - 2 - accepted) * step


def hiding_bound(prefill: float, total: float) -> float:
    """1/ρ: no trick that hides work in the prefill is faster than this, ρ = the prefill's share of the baseline."""
    return total / prefill


@dataclass
class LinearFit:
    """Least squares of y = a + b·x over a fading window: `decay` is the weight that an old point keeps per new one."""

    decay: float = 0.98
    w: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        for name, value in (("w", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, getattr(self, name) * self.decay + value)

    @property
    def slope(self) -> float:
        """b, never negative: a pass over more tokens is not faster."""
        spread = self.w * self.xx - self.x * self.x
        return (
            max(0.0, (self.w * self.xy - self.x * self.y) / spread)
            if spread > 1e-9 * self.w * self.xx
            else 0.0
        )

    def __call__(self, x: float) -> float:
        """a + b·x; 0 before the first point."""
        return (self.y + self.slope * (x * self.w - self.x)) / self.w if self.w else 0.0


@dataclass
class Mean:
    """A fading mean."""

    decay: float = 0.9
    weight: float = 0.0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.weight = self.weight * self.decay + 1
        self.total = self.total * self.decay + value

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.weight if self.weight else None


def _hopeful() -> Mean:
    """Four imagined tokens at 0.8, until real ones are seen."""
    return Mean(decay=0.96, weight=4.0, total=4.0 * 0.8)


@dataclass
class CostModel:
    """Times (seconds) and acceptances of the system as it runs; answers how much to draft and when to hide it."""

    verify: LinearFit = field(default_factory=LinearFit)  # n new tokens -> seconds
    step: Mean = field(default_factory=Mean)
    read: Mean = field(default_factory=Mean)  # the target's encode + prefill, alone
    draft_read: Mean = field(default_factory=Mean)  # the drafter's
    beside: Mean = field(default_factory=Mean)  # wall time of both side by side over the sum of both alone
    accept: Mean = field(default_factory=_hopeful)  # of a drafted token, given those before it
    accept_hidden: Mean = field(default_factory=_hopeful)  # the same for hidden drafts

    def observe_acceptance(self, depth: int, accepted: int, *, hidden: bool = False) -> None:
        """A chain of `depth` was offered and its first `accepted` nodes kept.

        One rate for all positions: were each position judged by its own past, short drafts would never learn that
        longer ones have begun to pay.
        """
        rate = self.accept_hidden if hidden else self.accept
        for _ in range(accepted):
            rate.add(1.0)
        if accepted < depth:
            rate.add(0.0)

    @property
    def alpha(self) -> float:
        """Conditional acceptance of a token drafted in a round."""
        return self.accept.total / self.accept.weight

    @property
    def alpha_hidden(self) -> float:
        """Conditional acceptance of a token drafted for the ride-along."""
        return self.accept_hidden.total / self.accept_hidden.weight

    def node_gain(self) -> float:
        """Least path probability at which one more node pays: (d + dV/dn) / t.

        An accepted node saves one pass over one token; it costs a drafting step and widens the verify pass.
        """
        t = self.verify(1)
        if not t or self.step.value is None:
            return 0.0
        return min(0.9, (self.step.value + self.verify.slope) / t)

    def worth(self, reach: Sequence[float]) -> int:
        """How many nodes of a finished chain to verify, by the drafter's own chances that each is reached."""
        return len(self.worthwhile(range(-1, len(reach) - 1), reach))

    def worthwhile(self, parents: Sequence[int], reach: Sequence[float]) -> list[int]:
        """Which nodes of a finished tree to verify, best first: those whose chance to be reached repays a wider pass.

        Args:
            parents: [n] as in a draft tree.
            reach: [n] the drafter's own chances. A node is never likelier than its parent, so it is kept with it only.
        """
        chances: list[float] = []
        for parent, chance in zip(parents, reach, strict=True):
            chances.append(chance if parent < 0 else min(chance, chances[parent]))
        t, slope = self.verify(1), self.verify.slope
        paying = [node for node, chance in enumerate(chances) if chance * t >= slope or not t]
        return sorted(paying, key=lambda node: -chances[node])

    def verify_depth(self, drafted: int) -> int:
        """How many nodes of a finished chain to verify: those whose chance to be reached repays the wider pass."""
        return self.worth([self.alpha_hidden**depth for depth in range(1, drafted + 1)])

    def best_depth(self, limit: int, probes: int = 0) -> int:
        """γ that maximises expected tokens per second, E[1 + a] / (γ·d + V(γ+1)); 0 where speculation loses.

        Probe rows widen every drafting pass, hence V(γ+1+probes).
        """
        t, d = self.verify(1), self.step.value
        if not t or d is None:
            return limit
        best, depth, expected, reach = 1 / t, 0, 1.0, 1.0
        for gamma in range(1, limit + 1):
            reach *= self.alpha
            expected += reach
            rate = expected / (gamma * d + self.verify(gamma + 1 + probes))
            if rate > best:
                best, depth = rate, gamma
        return depth

    def hiding(self, nodes: int) -> str:
        """On one shared device: draft `before` the prefill, `beside` it, or `off` (not for the prefill at all).

        Drafting k nodes before the prefill costs k·d and widens the ride-along pass; it saves the a + 1 tokens'
        share of later rounds. Side by side the same work takes `beside` times the sum of both.
        """
        t, d, read = self.verify(1), self.step.value, self.read.value
        if not t or d is None or read is None:
            return "before"  # nothing is known yet: measure one after the other first
        if self.beside.value is None:
            return "beside"  # then measure once what side by side costs
        depth = self.verify_depth(nodes)
        gained = expected_accepted([self.alpha_hidden] * depth)
        gamma = max(1, self.best_depth(16))
        per_token = (gamma * d + self.verify(gamma + 1)) / (1 + expected_accepted([self.alpha] * gamma))
        widened = self.verify.slope * depth
        drafting = nodes * d
        reading = read + (self.draft_read.value or 0.0)
        cost = {
            "off": gained * min(t, per_token),
            "before": drafting + widened,
            "beside": self.beside.value * (reading + drafting) - reading + widened,
        }
        return min(cost, key=lambda mode: cost[mode])
