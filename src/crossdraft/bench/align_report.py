"""What `crossdraft bench align` prints: a row for each drafter and control, and which expectations hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossdraft.bench.align import CONTROLS, HELD_OUT, THRESHOLDS, TRAINED, AlignBench, DraftResult, Results
from crossdraft.bench.common import table
from crossdraft.bench.environment import environment
from crossdraft.bench.statistics import Interval

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "accepted prefix", "in training wordings", "kept", "τ after it", "cos", *(f"> {one:.2f}" for one in THRESHOLDS),
    "in a row", "same token", "shifted",
)  # fmt: skip


def results_table(results: Results) -> "Table":
    """All figures; those after it and of features are of held-out wordings, where there are any."""
    from rich.markup import escape

    title = "tokens of the hidden draft that the target accepts, on test clips in held-out wordings; and its features"
    made = table(title, "drafter", COLUMNS, fold=True)
    for name, by_wordings in results.items():
        unseen, seen = by_wordings.get(HELD_OUT), by_wordings.get(TRAINED)
        first = next(iter(by_wordings.values()))
        tau = "–" if first.tau is None else f"{first.tau.value:.2f}"
        made.add_row(escape(name), *_prefixes(_mean(unseen), _mean(seen)), tau, *_features(first))
    return made


def _mean(result: DraftResult | None) -> Interval | None:
    return None if result is None else result.mean


def _prefixes(unseen: Interval | None, seen: Interval | None) -> tuple[str, str, str]:
    kept = f"{unseen.value / seen.value:.0%}" if unseen is not None and seen is not None and seen.value else "–"
    return "–" if unseen is None else str(unseen), "–" if seen is None else f"{seen.value:.2f}", kept


def _features(result: DraftResult) -> list[str]:
    found = result.features
    if found is None:
        return ["–"] * (len(COLUMNS) - 4)
    shares = (*found.above, found.same, found.shifted)
    percent = [f"{share:.1%}" for share in shares]
    return [f"{found.cosine:.3f}", *percent[:-2], f"{found.consecutive:.1f}", *percent[-2:]]


def lines(plan: AlignBench, results: Results) -> Iterator[str]:
    """The best drafter against the controls that see nothing, in held-out wordings where there are any."""
    found = {name: by_wordings.get(HELD_OUT, by_wordings.get(TRAINED)) for name, by_wordings in results.items()}
    means = {name: mean.value for name, result in found.items() if (mean := _mean(result)) is not None}
    best = max(plan.drafters, key=lambda name: means[name])
    yield f"Best: {best}, {means[best]:.2f} tokens."
    for control in CONTROLS:
        times = f"{means[best] / means[control]:.2f} times" if means[control] else "against 0 of"
        yield f"  {times} the control '{control}' ({means[control]:.2f})."
    lossy = [name for name, found in results.items() if any(map(_differs, found.values()))]
    yield f"Answers differed from the target's: {', '.join(lossy)}." if lossy else "Every answer was the target's own."


def _differs(result: DraftResult) -> bool:
    """Whether an answer was not the target's."""
    return result.equal is not None and result.equal < len(result.prefix)


def to_json(plan: AlignBench, results: Results) -> dict[str, object]:
    """Plain values."""
    return {
        "environment": environment(),
        **plan.questions.to_json(),
        "nodes": plan.nodes,
        "results": {
            name: {wordings: found.to_json() for wordings, found in by_wordings.items()}
            for name, by_wordings in results.items()
        },
    }
