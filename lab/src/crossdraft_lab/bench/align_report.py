"""Output of `crossdraft bench align`: a row for each drafter and control, and which expectations hold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from crossdraft_lab.bench.align import CONTROLS, HELD_OUT, TRAINED, UNTRAINED, AlignBench
from crossdraft_lab.bench.align_features import THRESHOLDS
from crossdraft_lab.bench.align_rows import DraftResult, Results
from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.figure import Figure
from crossdraft_lab.bench.statistics import Interval

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "accepted prefix", "in training wordings", "τ after it", "cos", *(f"> {one:.2f}" for one in THRESHOLDS),
    "in a row", "same token", "shifted",
)  # fmt: skip


def results_table(results: Results) -> "Table":
    """All figures; those after it and of features are of held-out wordings, where there are any."""
    from rich.markup import escape

    held_out = any(HELD_OUT in by_wordings for by_wordings in results.values())
    wordings = "held-out wordings" if held_out else "the wordings of the training: no question was held out"
    title = f"tokens of the hidden draft that the target accepts, on test clips in {wordings}; and its features"
    made = table(title, "drafter", COLUMNS)
    for name, by_wordings in results.items():
        unseen, seen = by_wordings.get(HELD_OUT), by_wordings.get(TRAINED)
        first = _first(by_wordings)
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
    """The best drafter against the controls, in held-out wordings where there are any."""
    found = {name: row for name, by_wordings in results.items() if (row := _first(by_wordings)).prefix}
    means = {name: row.mean for name, row in found.items() if row.mean is not None}
    best = max(plan.drafters, key=lambda name: means[name].value)
    yield f"Best drafter: {best}, {means[best].shown('clips')} tokens."
    for control in CONTROLS:
        more = compare(best, control, found)
        yield f"  {_tokens_more(more.interval)} than the control '{control}' ({means[control]})."
    if UNTRAINED not in results:
        yield f"The control '{UNTRAINED}' is lacking: no drafter is an event model of the target's vocabulary."
    for step in ladder(plan, results, None):
        yield f"  {step}."
    lossy = [name for name, found in results.items() if any(map(_differs, found.values()))]
    yield f"Answers differed from the target's: {', '.join(lossy)}." if lossy else "Every answer was the target's own."


@dataclass(frozen=True, slots=True)
class RungDifference:
    """Mean of accepted tokens that one row has more than another, question by question.

    Args:
        name, than: of the rows.
        interval: drawn over clips.
    """

    name: str
    than: str
    interval: Interval

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"drafter": self.name, "than": self.than, **self.interval.to_json("more")}

    def __str__(self) -> str:
        return f"{self.name} accepts {_tokens_more(self.interval)} than {self.than}"


def _tokens_more(more: Interval) -> str:
    """Describe a difference as tokens more or fewer.

    >>> _tokens_more(Interval(-0.5, -0.75, 0.25, 4))
    '0.50 [-0.25, 0.75; n=4 clips] tokens fewer'
    """
    if more.value >= 0:
        return f"{more.shown('clips')} tokens more"
    return f"{Interval(-more.value, -more.high, -more.low, more.n).shown('clips')} tokens fewer"


def compare(name: str, than: str, rows: Mapping[str, DraftResult]) -> RungDifference:
    """One row beside another, of the same questions."""
    own, other = rows[name], rows[than]
    more = [one - two for one, two in zip(own.prefix, other.prefix, strict=True)]
    return RungDifference(name, than, Figure.mean("accepted tokens", more, own.clips).interval)


def ladder(plan: AlignBench, results: Results, wordings: str | None) -> list[RungDifference]:
    """Each drafter beside the one named before it.

    Args:
        plan: whose drafters.
        results: of the measurement.
        wordings: of the questions; `None` = held-out ones, where there are any.
    """
    rows = {name: _first(results[name]) if wordings is None else results[name][wordings] for name in plan.drafters}
    return [compare(name, before, rows) for before, name in pairwise(plan.drafters)]


def _first(by_wordings: Mapping[str, DraftResult]) -> DraftResult:
    """A row in held-out wordings, where there are any."""
    return next(iter(by_wordings[name] for name in (HELD_OUT, TRAINED) if name in by_wordings))


def _differs(result: DraftResult) -> bool:
    """True if an answer was not the target's."""
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
        "ladder": {
            wordings: [step.to_json() for step in ladder(plan, results, wordings)]
            for wordings in results[plan.drafters[0]]
        },
    }
