"""`crossdraft plan`: does drafting pay on this machine, how much of it, and where does the time go? All simulated.

Pure: the formulas of `engine.cost`, each maximised over its free number.
"""

from dataclasses import dataclass

from crossdraft.bench.plan_stages import Stages
from crossdraft.engine.cost import expected_accepted, hidden_time, hiding_bound, steady_speedup

ALONE, STEADY, HIDDEN, BOTH = (
    "target alone",
    "steady drafting",
    "hidden drafting, then plain",
    "hidden drafting, then steady",
)
MOST_NODES, MOST_HIDDEN = 64, 256  # longest drafts that are tried: of a round, and beside the prefill
HARDLY = 1.02  # below this speed-up the advice is lukewarm: times are seldom known better


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to an answer, and what it is expected to take in milliseconds.

    Args:
        hidden: tokens drafted beside the prefill, 0 = none.
        budget: γ, tokens drafted in a round, 0 = plain steps.
        total: of the answer.
        speedup: the target's time alone over `total`.
        prefill: the target's, alone.
        waiting: how much longer than the prefill the target waits or works because of the drafter beside it.
        drafting: in the rounds.
        yields: tokens that the pass over the hidden draft is expected to give, a + 1.
        needs: what it must give more than, to be faster than the same way without a hidden draft.
    """

    name: str
    hidden: int
    budget: int
    total: float
    speedup: float
    prefill: float
    waiting: float
    drafting: float
    yields: float | None = None
    needs: float | None = None

    @property
    def passes(self) -> float:
        """The target's passes after the prefill."""
        return self.total - self.prefill - self.waiting - self.drafting

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the total; they add up to 1."""
        return {name: getattr(self, name) / self.total for name in ("prefill", "waiting", "drafting", "passes")}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to expect, and what to do.

    Args:
        stages: what it was computed from.
        ways: the target alone first.
        least_alpha: acceptance above which drafting in rounds pays, whatever the budget; None if none does. With
            V(γ+1) = t it is c.
        bound: 1/ρ, the best speed-up of any trick that hides work in the prefill.
        measured: whether the stages were; the advice itself is simulated in any case.
    """

    stages: Stages
    strategies: tuple[Strategy, ...]
    least_alpha: float | None
    bound: float
    measured: bool = False

    @property
    def alone(self) -> Strategy:
        """The target alone."""
        return self.strategies[0]

    @property
    def best(self) -> Strategy:
        """The fastest way; the target alone if nothing beats it."""
        return min(self.strategies, key=lambda strategy: strategy.total)

    def strategy(self, name: str) -> Strategy:
        """One of them by its name."""
        return next(strategy for strategy in self.strategies if strategy.name == name)

    @property
    def source(self) -> str:
        """What stands beside every number."""
        return f"simulated from {'measured stages' if self.measured else 'typed-in numbers'}"


def advise(stages: Stages, *, measured: bool = False) -> Advice:
    """Every way at its best budget, and what each must reach to pay."""
    budget = best_budget(stages)
    strategies = (
        _strategy(stages, ALONE, 0, 0),
        _strategy(stages, STEADY, 0, budget),
        _strategy(stages, HIDDEN, best_hidden(stages, 0), 0),
        _strategy(stages, BOTH, best_hidden(stages, budget), budget),
    )
    return Advice(stages, strategies, least_alpha(stages), hiding_bound(stages.prefill, _total(stages, 0, 0)), measured)


def best_budget(stages: Stages) -> int:
    """γ ≥ 1 that maximises the speed-up of a round; where drafting loses, the one that loses least."""
    return max(range(1, MOST_NODES + 1), key=lambda gamma: _steady(stages, stages.alpha, gamma))


def best_hidden(stages: Stages, budget: int) -> int:
    """k ≥ 1 behind which one more node of the hidden draft no longer repays what it costs.

    The least total over all k, since V need not be a straight line: where a pass over two tokens already costs much
    more than a step, the first node does not pay, and the tenth may.
    """
    return min(range(1, min(stages.tokens - 2, MOST_HIDDEN) + 1), key=lambda hidden: _total(stages, hidden, budget))


def least_alpha(stages: Stages) -> float | None:
    """The acceptance at which the best round breaks even, found by halving; None if even 1 loses."""

    def pays(alpha: float) -> bool:
        return any(_steady(stages, alpha, gamma) > 1 for gamma in range(1, MOST_NODES + 1))

    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def _steady(stages: Stages, alpha: float, gamma: int) -> float:
    """Speed of rounds of γ drafted tokens, plain steps = 1."""
    return steady_speedup(alpha, gamma, stages.c, stages.verify(gamma + 1) / stages.step)


def _total(stages: Stages, hidden: int, budget: int) -> float:
    """T in milliseconds. A token of a round costs t / S; so does the first one behind a prefill without a draft."""
    token = stages.step / _steady(stages, stages.alpha, budget)
    drafting = stages.drafting(hidden) if hidden or budget else 0.0
    contended = stages.contended(hidden) if hidden or budget else 0.0
    return hidden_time(
        stages.prefill + contended,
        drafting + contended,
        stages.verify(hidden + 1) if hidden else token,
        expected_accepted(stages.hazards(hidden)),
        stages.tokens,
        token,
    )


def _strategy(stages: Stages, name: str, hidden: int, budget: int) -> Strategy:
    total, without = _total(stages, hidden, budget), _total(stages, 0, budget)
    accepted = expected_accepted(stages.hazards(hidden))
    left = stages.tokens - 1 - (accepted + 1 if hidden else 0)
    rounds = left / (1 + expected_accepted([stages.alpha] * budget))
    waiting = 0.0
    if hidden or budget:
        waiting = max(0.0, stages.drafting(hidden) - stages.prefill) + stages.contended(hidden)
    token = stages.step / _steady(stages, stages.alpha, budget)
    return Strategy(
        name,
        hidden,
        budget,
        total,
        _total(stages, 0, 0) / total,
        stages.prefill,
        waiting,
        rounds * budget * stages.draft_step,
        yields=accepted + 1 if hidden else None,
        # T(k) − T(0) = [V(k+1) + what is waited longer] − (a + 1)·token; it breaks even where this is 0.
        needs=accepted + 1 + (total - without) / token if hidden else None,
    )
