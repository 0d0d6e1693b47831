"""`crossdraft plan`: whether drafting pays on this machine, the best draft lengths, and the shares of time. Simulated.

The formulas are those of `bench.formulas`, each maximised over its free number. Imports no torch.
"""

import math
from dataclasses import asdict, dataclass

from crossdraft.engine.estimates import expected_accepted
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.formulas import hidden_time, hiding_bound, steady_speedup

LEAST_TOKENS, MOST_TOKENS = 3, 10**9
SHORTEST, LONGEST = 1e-6, 1e9  # milliseconds; within them no quotient of two times overflows
ALONE, STEADY, HIDDEN, BOTH = (
    "target alone",
    "steady drafting",
    "hidden drafting, then plain",
    "hidden drafting, then steady",
)
MOST_NODES, MOST_HIDDEN = 64, 256  # longest drafts that are tried: of a round, and during the prefill


HARDLY = 1.02  # below this speed-up the advice is lukewarm: times are seldom known better
STRATEGIES_HEAD = ("way", "ms", "times the target alone", "prefill", "not hidden", "drafting", "passes")


@dataclass(frozen=True, slots=True)
class Stages:
    """A machine and a workload. All times in milliseconds.

    Args:
        prefill: P_T, the target's encode and prefill.
        step: t = V(1), one decode step of the target.
        draft_step: d, one drafted token; c = d / t.
        acceptance: probability that a drafted token is accepted if those before it were: one value for all positions,
            or one for each. After the last of several values, nothing is accepted.
        tokens: N, number of tokens of an answer.
        draft_prefill: P_D, the drafter's encode and prefill.
        passes: (n, V(n)), the time of one target pass over n new tokens, for any n; V(1) is `step`; without any, V is
            flat. Straight lines join the points and lead on after the last. A pass over more tokens is not faster: a
            point below an earlier one is lifted to it.
        contention: time that the drafter's work during the prefill adds to the longer of the two, as a share of the
            shorter: 0 = a device of its own, 1 = one shared device, as if one ran after the other.

    Raises:
        CrossdraftError: a number that is out of range.
    """

    prefill: float
    step: float
    draft_step: float
    acceptance: tuple[float, ...]
    tokens: int
    draft_prefill: float = 0.0
    passes: tuple[tuple[int, float], ...] = ()
    contention: float = 0.0

    def __post_init__(self) -> None:
        _check_time("prefill", self.prefill)
        _check_time("step", self.step)
        _check_time("draft step", self.draft_step, least=0)
        _check_time("draft prefill", self.draft_prefill, least=0)
        _check("contention", self.contention, 0, 100, "0 for a device of its own, 1 for a shared one")
        if not self.acceptance:
            raise CrossdraftError("No acceptance is given; give one from 0 to 1.")
        for prob in self.acceptance:
            _check("acceptance", prob, 0, 1, "a probability from 0 to 1")
        if not LEAST_TOKENS <= self.tokens <= MOST_TOKENS:
            raise CrossdraftError(
                f"The answer is {self.tokens} tokens long; give {LEAST_TOKENS} to {MOST_TOKENS} (the prefill gives the "
                "first, the pass that checks a draft the last)."
            )
        self._check_passes()

    def _check_passes(self) -> None:
        known: set[int] = set()
        for n, time in self.passes:
            if not 1 <= n <= MOST_TOKENS:
                raise CrossdraftError(f"There is no pass over {n} tokens; give V(n) for n of 1 or more.")
            if n in known:
                raise CrossdraftError(f"V({n}) is given twice; give it once.")
            _check_time(f"time V({n})", time)
            if n == 1 and time != self.step:
                raise CrossdraftError(
                    f"V(1) is {time:g} ms and the step {self.step:g} ms, but they are the same; give one of them."
                )
            known.add(n)

    @property
    def c(self) -> float:
        """Draft step over target step."""
        return self.draft_step / self.step

    @property
    def alpha(self) -> float:
        """Accepted over verified nodes: the mean of `acceptance` by position over a draft as long as the list.

        A position is verified if all before it were accepted: Σ_i Π_{j≤i} h_j / Σ_i Π_{j<i} h_j.
        """
        path_probs = [math.prod(self.acceptance[:depth]) for depth in range(len(self.acceptance) + 1)]
        return sum(path_probs[1:]) / sum(path_probs[:-1])

    def acceptances(self, depth: int) -> tuple[float, ...]:
        """[depth] conditional acceptances of a chain."""
        if len(self.acceptance) == 1:
            return self.acceptance * depth
        return (self.acceptance + (0.0,) * depth)[:depth]

    def verify(self, n: int) -> float:
        """V(n), the time of a target pass over n tokens.

        >>> Stages(300, 10, 2, (0.8,), 50, passes=((3, 14),)).verify(5)
        18.0
        """
        lifted, highest = [(1, self.step)], self.step
        for width, time in sorted(self.passes):
            highest = max(highest, time)
            if width > 1:
                lifted.append((width, highest))
        index = next((i for i, (width, _) in enumerate(lifted) if width >= n), len(lifted) - 1)
        if index == 0:
            return self.step
        (x0, y0), (x1, y1) = lifted[index - 1], lifted[index]
        return y0 + (n - x0) * (y1 - y0) / (x1 - x0)

    def drafting(self, hidden: int) -> float:
        """Time of P_D and `hidden` drafted tokens; the first token costs no step, as the prefill gives the target's."""
        return self.draft_prefill + hidden * self.draft_step

    def contended(self, hidden: int) -> float:
        """Time that drafting and prefill add to each other side by side."""
        return self.contention * min(self.prefill, self.drafting(hidden))

    @property
    def free(self) -> int:
        """Number of tokens that can be drafted before the prefill ends at no cost, within the answer's length."""
        left = self.prefill - self.draft_prefill
        if self.contention or left < 0:
            return 0
        room = self.tokens - 2
        return int(left / self.draft_step) if left < room * self.draft_step else room


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to generate an answer, and its expected times in milliseconds.

    Args:
        hidden: number of tokens drafted during the prefill, 0 = none.
        budget: γ, number of tokens drafted in a round, 0 = plain steps.
        total: time of the answer.
        speedup: the target's time alone over `total`.
        prefill: time of the target's prefill without a drafter.
        waiting: additional time, beyond the prefill, in which the target waits or works because of the drafter.
        drafting: time of drafting in the rounds.
        yields: expected number of tokens from the pass over the hidden draft, a + 1.
        needs: number of tokens that `yields` must exceed for the hidden draft to make the answer faster.
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
        """Time of the target's passes after the prefill."""
        return self.total - self.prefill - self.waiting - self.drafting

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the total; they add up to 1."""
        return {name: getattr(self, name) / self.total for name in ("prefill", "waiting", "drafting", "passes")}


@dataclass(frozen=True, slots=True)
class Advice:
    """Expected times of each strategy, and advice on what to do.

    Args:
        stages: stages that the times were computed from.
        strategies: the strategies, the target alone first.
        least_alpha: acceptance above which drafting in rounds pays at some budget; `None` if it never does. With
            V(γ+1) = t it equals c.
        bound: 1/ρ, the largest speed-up of any work hidden in the prefill.
        measured: true if the stages were measured; the advice itself is simulated in any case.
    """

    stages: Stages
    strategies: tuple[Strategy, ...]
    least_alpha: float | None
    bound: float
    measured: bool = False

    @property
    def alone(self) -> Strategy:
        """Strategy of the target alone."""
        return self.strategies[0]

    @property
    def best(self) -> Strategy:
        """The fastest strategy; the target alone if none beats it."""
        return min(self.strategies, key=lambda strategy: strategy.total)

    def strategy(self, name: str) -> Strategy:
        """Strategy of a given name."""
        return next(strategy for strategy in self.strategies if strategy.name == name)

    @property
    def source(self) -> str:
        """The source that every number is shown with."""
        return f"simulated from {'measured stages' if self.measured else 'typed-in numbers'}"


def advise(stages: Stages, *, measured: bool = False) -> Advice:
    """Compute every strategy at its best budget, and the break-even point of each."""
    budget = best_budget(stages)
    strategies = (
        _strategy(stages, ALONE, 0, 0),
        _strategy(stages, STEADY, 0, budget),
        _strategy(stages, HIDDEN, best_hidden(stages, 0), 0),
        _strategy(stages, BOTH, best_hidden(stages, budget), budget),
    )
    return Advice(stages, strategies, least_alpha(stages), hiding_bound(stages.prefill, _total(stages, 0, 0)), measured)


def best_budget(stages: Stages) -> int:
    """γ ≥ 1 that maximises the speed-up of a round; where drafting always loses, the γ that loses least."""
    return max(range(1, MOST_NODES + 1), key=lambda gamma: _steady(stages, stages.alpha, gamma))


def best_hidden(stages: Stages, budget: int) -> int:
    """k ≥ 1, the length of the hidden draft that minimises the total.

    All k are tried, since V need not be a straight line: where a pass over two tokens already costs much more than a
    step, the first node does not pay, and the tenth may.
    """
    return min(range(1, min(stages.tokens - 2, MOST_HIDDEN) + 1), key=lambda hidden: _total(stages, hidden, budget))


def least_alpha(stages: Stages) -> float | None:
    """The acceptance at which the best round breaks even, found by bisection; `None` if even 1 loses."""

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
    """Speed of rounds with γ drafted tokens, relative to plain steps."""
    return steady_speedup(alpha, gamma, stages.c, stages.verify(gamma + 1) / stages.step)


def _total(stages: Stages, hidden: int, budget: int) -> float:
    """Time T of an answer in ms. A token costs t / S in a round, as does the first token without a hidden draft."""
    token = stages.step / _steady(stages, stages.alpha, budget)
    drafting = stages.drafting(hidden) if hidden or budget else 0.0
    contended = stages.contended(hidden) if hidden or budget else 0.0
    return hidden_time(
        stages.prefill + contended,
        drafting + contended,
        stages.verify(hidden + 1) if hidden else token,
        expected_accepted(stages.acceptances(hidden)),
        stages.tokens,
        token,
    )


def _strategy(stages: Stages, name: str, hidden: int, budget: int) -> Strategy:
    total, without = _total(stages, hidden, budget), _total(stages, 0, budget)
    accepted = expected_accepted(stages.acceptances(hidden))
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
        # T(k) − T(0) = [V(k+1) + additional waiting] − (a + 1)·token; the draft breaks even where this is 0.
        needs=accepted + 1 + (total - without) / token if hidden else None,
    )


def _check_time(what: str, milliseconds: float, least: float = SHORTEST) -> None:
    _check(what, milliseconds, least, LONGEST, f"milliseconds from {least:g} to {LONGEST:g}")


def _check(what: str, value: float, least: float, most: float, wanted: str) -> None:
    if not least <= value <= most:  # false of nan too
        raise CrossdraftError(f"The {what} is {value:g}; give {wanted}.")


def strategy_rows(advice: Advice) -> list[tuple[str, ...]]:
    """Row for each strategy: its time, its speed-up, and its shares of time."""
    return [
        (
            strategy.name,
            f"{strategy.total:.1f}",
            f"{strategy.speedup:.2f}",
            *(f"{share:.0%}" for share in strategy.shares.values()),
        )
        for strategy in advice.strategies
    ]


def figures(advice: Advice) -> list[tuple[str, str]]:
    """Break-even points, budgets and the bound, by name."""
    stages = advice.stages
    hidden, steady, both = (advice.strategy(name) for name in (HIDDEN, STEADY, BOTH))
    least = "none is enough" if advice.least_alpha is None else f"above {advice.least_alpha:.2f}"
    round_pays = advice.least_alpha is not None and stages.alpha > advice.least_alpha
    return [
        ("hidden draft: length", _length(hidden.hidden, hidden.speedup > 1)),
        ("hidden draft: free, inside the prefill", _tokens(stages.free)),
        (
            "hidden draft: break-even",
            f"a + 1 > {hidden.needs:.1f} (steady after: {both.needs:.1f}); expected {hidden.yields:.1f}",
        ),
        ("draft of a round: length", _length(steady.budget, round_pays)),
        ("draft of a round: break-even", f"acceptance: {least}; given {stages.alpha:.2f} (c = {stages.c:.2f})"),
        ("1/ρ, the most that hiding can reach", f"{advice.bound:.2f} times the target alone"),
    ]


def sentence(advice: Advice) -> str:
    """Advice in a sentence: draft or do not draft, and why."""
    best, alone = advice.best, advice.alone
    if best.name == ALONE:
        rival = min(advice.strategies[1:], key=lambda strategy: strategy.total)
        return (
            f"Do not draft: {_described(rival)} would take {rival.total:.1f} ms, no less than the target alone with "
            f"{alone.total:.1f} ms ({advice.source}), because {_why(advice, rival)}."
        )
    output = "Draft" if best.speedup > HARDLY else "Drafting hardly pays"
    return (
        f"{output}: {_described(best)} takes {best.total:.1f} ms where the target alone takes {alone.total:.1f}, "
        f"{best.speedup:.2f} times as fast ({advice.source}), because {_why(advice, best)}."
    )


def to_json(advice: Advice) -> dict[str, object]:
    """Plain values, times in milliseconds."""
    stages = advice.stages
    return {
        "source": advice.source,
        "stages": {**asdict(stages), "c": stages.c, "alpha": stages.alpha},
        "ways": [
            {**asdict(strategy), "passes": strategy.passes, "shares": strategy.shares} for strategy in advice.strategies
        ],
        "best": advice.best.name,
        "least_alpha": advice.least_alpha,
        "free_hidden_tokens": stages.free,
        "bound": advice.bound,
        "advice": sentence(advice),
    }


def _described(strategy: Strategy) -> str:
    """Name of a strategy with its budgets."""
    return {
        STEADY: f"drafting {_tokens(strategy.budget)} a round",
        HIDDEN: f"a hidden draft of {_tokens(strategy.hidden)}, then plain steps,",
        BOTH: f"a hidden draft of {_tokens(strategy.hidden)}, then {strategy.budget} a round,",
    }[strategy.name]


def _why(advice: Advice, strategy: Strategy) -> str:
    """Break-even points of the parts of a strategy, as a sentence."""
    reasons = []
    if strategy.needs is not None:
        reasons.append(
            f"the hidden draft's pass yields {strategy.yields:.1f} tokens and pays above {strategy.needs:.1f}"
        )
    if strategy.budget:
        least = advice.least_alpha
        pays = "at no acceptance" if least is None else f"above {least:.2f}"
        reasons.append(
            f"a token drafted in a round is accepted with probability {advice.stages.alpha:.2f} and pays {pays}"
        )
    if strategy is not advice.best and strategy.waiting > advice.alone.total / 100:
        reasons.append(f"{strategy.waiting:.1f} ms of the drafter's work are not hidden")
    return ", and ".join(reasons)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _length(count: int, pays: bool) -> str:
    return _tokens(count) if pays else f"none ({_tokens(count)} would lose least)"
