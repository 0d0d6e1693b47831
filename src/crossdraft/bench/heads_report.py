"""The trained drafters as tables and as JSON."""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from crossdraft.bench.heads import HeadResult, HeadsReport
from crossdraft.bench.heads_tau import DraftSetting
from crossdraft.bench.report import FEW_PAIRS, INTERVALS
from crossdraft.drafters.evaluate import TAU

if TYPE_CHECKING:
    from rich.table import Table

PARAMETERS = (
    "parameters: all that the drafter runs of its own (head, event model); what it borrows of the target is not "
    "counted. stored, min: of the trained part, its files and its training"
)
ABREAST = 7  # drafters beside each other in the table by kind of question


def to_json(report: HeadsReport) -> dict[str, object]:
    """The whole report in plain values; times in milliseconds."""
    times = report.times
    clocked = None
    if times is not None:
        clocked = {"places": times.places, "t_ms": times.single.ms(), f"v{times.nodes + 1}_ms": times.wide.ms()}
    return {
        "environment": report.environment,
        "workload": report.workload,
        "tau": TAU,
        "target": clocked,
        "drafters": [_row_json(row, report) for row in report.rows],
        "claims": [finding.to_json() for finding in report.expectations],
        "notes": list(report.notes),
    }


def _row_json(row: HeadResult, report: HeadsReport) -> dict[str, object]:
    drafting = None
    if row.drafting is not None and report.times is not None:
        against_pass, against_step = report.times.ratios(row.name)
        drafting = {
            "draft_ms": row.drafting.draft.ms(),
            "of_it_listening_ms": row.drafting.listen.ms(),
            "mean_nodes": round(row.drafting.nodes, 1),
            "over_verifying_pass": round(against_pass, 3),
            "over_t": round(against_step, 3),
        }
    return {
        "name": row.name,
        **row.facts.to_json(),
        "drafting": drafting,
        "accepted": [
            {
                "shape": setting.shape,
                "nodes": setting.nodes,
                "temperature": setting.temperature,
                **row.accepted[setting].to_json(),
            }
            for setting in report.settings
        ],
        "identical": {"equal": row.equal, "total": row.total} if row.total else None,
        "divergences": [divergence.to_json() for divergence in row.divergences],
        "speedup": None if row.speedup is None else row.speedup.to_json(),
    }


def tables(report: HeadsReport) -> "list[Table]":
    """What each is worth, what it costs, what is kept at each depth, and τ by kind of question."""
    return [_worth(report), _costs(report), _depths(report), *_kinds(report)]


def lines(report: HeadsReport) -> list[str]:
    """The papers' order, and what a reader must know beside the tables."""
    labels = {row.name: row.label for row in report.rows}
    told = [f"{finding.told(labels)} {INTERVALS}" for finding in report.expectations]
    gaps = [f"{d.gap:.2g}" for row in report.rows for d in row.divergences]
    if gaps:
        told.append(f"top-2 logit gaps at divergences: {', '.join(gaps[:8])}")
    counts = {"pairs": report.workload["pairs"], "pairs of the race": report.workload["raced"]}
    for what, count in counts.items():
        if isinstance(count, int) and 0 < count < FEW_PAIRS:
            told.append(f"fewer than {FEW_PAIRS} {what}: the intervals are narrower than the truth")
    return [*told, *report.notes]


def _worth(report: HeadsReport) -> "Table":
    title = f"τ {INTERVALS}, {report.workload['pairs']} held-out pairs"
    heads = [*(setting.name for setting in report.settings), "identical"]
    if report.rows[0].speedup is not None:
        heads.append("× target alone")
    table = _table(title, "drafter", heads, TAU)
    for row in report.rows:
        cells = [*(str(row.accepted[setting].tau) for setting in report.settings), _identical(row)]
        if row.speedup is not None:
            cells.append(str(row.speedup))
        table.add_row(_escaped(row.label), *cells)
    return table


def _costs(report: HeadsReport) -> "Table":
    times = report.times
    heads, caption = ["parameters", "of them trained", "stored MB", "min"], PARAMETERS
    if times is not None:
        wide = f"V({times.nodes + 1})"
        heads += ["ms a draft", f"/ {wide}", "/ t", "nodes"]
        caption += (
            f"\n{wide} = {times.wide.median * 1e3:.1f} ms, t = V(1) = {times.single.median * 1e3:.1f} ms, one request; "
            f"medians of {times.places} places, where all drafted in turn"
        )
    table = _table("what it costs", "drafter", heads, caption)
    for row in report.rows:
        facts, minutes = row.facts, row.facts.training_s
        cells = ["–"] * 4
        if facts.parameters:
            cells = [f"{facts.parameters:,}", f"{facts.trained:,}", f"{facts.stored_bytes / 1e6:.2f}"]
            cells.append("–" if minutes is None else f"{minutes / 60:.1f}")
        if row.drafting is not None and times is not None:
            ratios = times.ratios(row.name)
            cells += [f"{row.drafting.draft.median * 1e3:.2f}", *(f"{value:.2f}" for value in ratios)]
            cells.append(f"{row.drafting.nodes:.0f}")
        table.add_row(_escaped(row.label), *cells)
    return table


def _depths(report: HeadsReport) -> "Table":
    """Of the greedy parts, or of the first."""
    shown = [setting for setting in report.settings if setting.temperature == 0] or report.settings[:1]
    table = _table("drafts kept at each depth", "drafter", [setting.name for setting in shown])
    for row in report.rows:
        table.add_row(_escaped(row.label), *(_shares(row, setting) for setting in shown))
    return table


def _shares(row: HeadResult, setting: DraftSetting) -> str:
    return " ".join(f"{share:.2f}" for share in row.accepted[setting].per_position[:8])


def _kinds(report: HeadsReport) -> "list[Table]":
    """A line for each kind of question, so many drafters beside each other."""
    setting, rows, found = report.settings[0], iter(report.rows), []
    while chosen := list(islice(rows, ABREAST)):
        table = _table(f"τ by kind of question, {setting.name}", "kind", [_escaped(row.label) for row in chosen])
        for kind in chosen[0].accepted[setting].by_kind:
            table.add_row(kind, *(f"{row.accepted[setting].by_kind[kind]:.2f}" for row in chosen))
        found.append(table)
    return found


def _table(title: str, first: str, heads: Sequence[str], caption: str | None = None) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption)
    table.add_column(first, overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    return table


def _identical(row: HeadResult) -> str:
    found = f"{row.equal}/{row.total}"
    return "–" if not row.total else found if row.equal == row.total else f"[red]{found}[/]"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
