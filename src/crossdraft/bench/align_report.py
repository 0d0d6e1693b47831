"""What `crossdraft bench align` prints: a row for each drafter and control, and which expectations hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossdraft.bench.align import CONTROLS, HELD_OUT, TRAINED, AlignBench, DraftResult, Results
from crossdraft.bench.align_features import THRESHOLDS
from crossdraft.bench.common import table
from crossdraft.bench.environment import environment
from crossdraft.bench.statistics import Interval, ratio

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "accepted prefix", "in training wordings", "τ after it", "cos", *(f"> {one:.2f}" for one in THRESHOLDS),
    "in a row", "same token", "shifted",
)  # fmt: skip


def results_table(results: Results) -> "Table":
    """All figures; those after it and of features are of held-out wordings, where there are any."""
    from rich.markup import escape

    title = "tokens of the hidden draft that the target accepts, on test clips in held-out wordings; and its features"
    made = table(title, "drafter", COLUMNS)
    for name, by_wordings in results.items():
        unseen, seen = by_wordings.get(HELD_OUT), by_wordings.get(TRAINED)
        first = next(iter(by_wordings.values()))
        shown = ("–" if one is None else str(one) for one in (_mean(unseen), _mean(seen), first.tau))
        made.add_row(escape(name), *shown, *_features(first))
    return made


def _mean(result: DraftResult | None) -> Interval | None:
    return None if result is None else result.mean


def _features(result: DraftResult) -> list[str]:
    found = result.features
    if found is None:
        return ["–"] * (len(COLUMNS) - 3)
    figures = (found.cosine, *found.above, found.consecutive, found.same, found.shifted)
    return [figure.shown(digits=3) for figure in figures]


def lines(plan: AlignBench, results: Results) -> Iterator[str]:
    """The best drafter against the controls that see nothing, in held-out wordings where there are any."""
    found = {name: by_wordings.get(HELD_OUT, by_wordings.get(TRAINED)) for name, by_wordings in results.items()}
    means = {name: mean for name, result in found.items() if (mean := _mean(result)) is not None}
    best = max(plan.drafters, key=lambda name: means[name].value)
    yield f"Best: {best}, {means[best]} tokens."
    for control in CONTROLS:
        yield f"  {_more(found[best], found[control])} tokens more than the control '{control}' ({means[control]})."
    lossy = [name for name, found in results.items() if any(map(_differs, found.values()))]
    yield f"Answers differed from the target's: {', '.join(lossy)}." if lossy else "Every answer was the target's own."


def _more(best: DraftResult | None, control: DraftResult | None) -> Interval:
    """Mean of accepted tokens that one has more than another, of the same questions."""
    own, other = (() if one is None else one.prefix for one in (best, control))
    return ratio([one - two for one, two in zip(own, other, strict=True)], [1] * len(own))


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
