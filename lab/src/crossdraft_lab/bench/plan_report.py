"""Output of `crossdraft plan`: its tables, the advice as a sentence, and plain values. Imports no torch."""

from dataclasses import asdict

from crossdraft_lab.bench.plan import ALONE, BOTH, HIDDEN, STEADY, Advice, Strategy

HARDLY = 1.02  # below this speed-up the advice is lukewarm: times are seldom known better
STRATEGIES_HEAD = ("way", "ms", "times the target alone", "prefill", "not hidden", "drafting", "passes")


def strategy_rows(advice: Advice) -> list[tuple[str, ...]]:
    """A row for each way: its time, speed-up, and where the time goes."""
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
    """Draft or do not draft, and why."""
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
    """A way with its budgets."""
    return {
        STEADY: f"drafting {_tokens(strategy.budget)} a round",
        HIDDEN: f"a hidden draft of {_tokens(strategy.hidden)}, then plain steps,",
        BOTH: f"a hidden draft of {_tokens(strategy.hidden)}, then {strategy.budget} a round,",
    }[strategy.name]


def _why(advice: Advice, strategy: Strategy) -> str:
    """The break-even points of what the way does."""
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
