"""Output of `crossdraft bench align`: a row for each drafter and control, and which expectations hold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from crossdraft_lab.bench.align import CONTROLS, HELD_OUT, TRAINED, UNTRAINED, AlignBench
from crossdraft_lab.bench.align_features import THRESHOLDS, Json
from crossdraft_lab.bench.align_rows import Results
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.record import FigureTable
from crossdraft_lab.bench.figure import Figure
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.study import FigureColumn, figure_table, name_column, shown


def _interval(found: Any, digits: int = 2) -> str:
    return shown(found and Interval.from_json(found).shown(digits=digits))


def _column(head: str, of: str, *wordings: str) -> FigureColumn:
    """A figure of rows in those wordings; in held-out ones, where there are any, if none is named."""

    def figure(by_wordings: Mapping[str, Json], name: str) -> Any:
        row = _first(by_wordings) if not wordings else by_wordings.get(wordings[0])
        return row and row[of]

    return FigureColumn("", head, figure, _interval)


def _feature(head: str, key: str) -> FigureColumn:
    def figure(by_wordings: Mapping[str, Json], name: str) -> Any:
        return (_first(by_wordings)["features"] or {}).get(key)

    return FigureColumn("", head, figure, lambda found: _interval(found, 3))


COLUMNS = (
    name_column("drafter"),
    _column("accepted prefix", "accepted_prefix", HELD_OUT),
    _column("in training wordings", "accepted_prefix", TRAINED),
    _column("τ after it", "tau"),
    _feature("cos", "cosine"),
    *(_feature(f"> {one:.2f}", f"acceptance@{one:.2f}") for one in THRESHOLDS),
    _feature("in a row", "consecutive@0.90"),
    _feature("same token", "same_position"),
    _feature("shifted", "shifted"),
)


def results_table(results: Results) -> FigureTable:
    """All figures; those after it and of features are of held-out wordings, where there are any."""
    held_out = any(HELD_OUT in by_wordings for by_wordings in results.values())
    wordings = "held-out wordings" if held_out else "the wordings of the training: no question was held out"
    title = f"tokens of the hidden draft that the target accepts, on test clips in {wordings}; and its features"
    return figure_table(title, COLUMNS, [(by_wordings, name) for name, by_wordings in results.items()])


def lines(plan: AlignBench, results: Results) -> Iterator[str]:
    """The best drafter against the controls, in held-out wordings where there are any."""
    found = {name: row for name, by_wordings in results.items() if (row := _first(by_wordings))["prefixes"]}
    means = {name: Interval.from_json(row["accepted_prefix"]) for name, row in found.items()}
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
    """Mean of accepted tokens that one row has more than another, question by question; drawn over clips."""

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


def compare(name: str, than: str, rows: Mapping[str, Json]) -> RungDifference:
    """One row beside another, of the same questions."""
    own, other = rows[name], rows[than]
    more = [one - two for one, two in zip(own["prefixes"], other["prefixes"], strict=True)]
    return RungDifference(name, than, Figure.mean("accepted tokens", more, own["clips"]).interval)


def ladder(plan: AlignBench, results: Results, wordings: str | None) -> list[RungDifference]:
    """Each drafter beside the one named before it; `wordings` of `None` are held-out ones, where there are any."""
    rows = {name: _first(results[name]) if wordings is None else results[name][wordings] for name in plan.drafters}
    return [compare(name, before, rows) for before, name in pairwise(plan.drafters)]


def _first(by_wordings: Mapping[str, Json]) -> Json:
    """A row in held-out wordings, where there are any."""
    return by_wordings[HELD_OUT if HELD_OUT in by_wordings else TRAINED]


def _differs(row: Json) -> bool:
    """True if an answer was not the target's."""
    return row["equal"] is not None and row["equal"] < len(row["prefixes"])


def to_json(plan: AlignBench, results: Results) -> dict[str, object]:
    """Plain values."""
    return {
        "environment": environment(),
        **plan.questions.about,
        "learned": plan.questions.learned,
        "nodes": plan.nodes,
        "results": results,
        "ladder": {
            wordings: [step.to_json() for step in ladder(plan, results, wordings)]
            for wordings in results[plan.drafters[0]]
        },
    }
