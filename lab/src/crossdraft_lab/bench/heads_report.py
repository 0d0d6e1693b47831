"""`crossdraft bench heads` as tables, as JSON and as a picture."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from crossdraft.drafters.evaluate import TAU
from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.heads import HeadResult, HeadsReport
from crossdraft_lab.bench.heads_timing import DraftTimes
from crossdraft_lab.bench.measure import gaps_in_words
from crossdraft_lab.bench.plot import interval_bars, save
from crossdraft_lab.bench.report import FEW_PAIRS, INTERVALS, identical

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARAMETERS = (
    "parameters: all that the drafter runs of its own (head, event model); what it borrows of the target is not "
    "counted. stored, min: of the trained part, its files and its training"
)
COLOURS = ("#1a7f37", "#8c959f")  # of trees and of chains
GROUP = 0.8  # height of a drafter's bars together; drafters lie 1 from another
ABREAST = 7  # drafters in one table by kind of question


def to_json(report: HeadsReport) -> dict[str, object]:
    """The whole report in plain values; times in milliseconds."""
    times = report.times
    clocked = None
    if times is not None:
        clocked = {"positions": times.positions, "t_ms": times.single.ms(), f"v{times.nodes + 1}_ms": times.wide.ms()}
    return {
        "environment": report.environment,
        "workload": report.workload,
        "tau": TAU,
        "target": clocked,
        "drafters": [_row_json(row, report) for row in report.rows],
        "claims": [result.to_json() for result in report.expectations],
        "notes": list(report.notes),
    }


def _row_json(row: HeadResult, report: HeadsReport) -> dict[str, object]:
    drafting = None
    if row.drafting is not None and report.times is not None:
        against_pass, against_step = report.times.ratios(row.name)
        drafting = {
            "draft_ms": row.drafting.draft.ms(),
            "of_it_commit_ms": row.drafting.commit.ms(),
            "mean_nodes": round(row.drafting.nodes, 1),
            "over_verifying_pass": round(against_pass, 3),
            "over_t": round(against_step, 3),
        }
    return {
        "name": row.name,
        **row.facts.to_json(),
        "drafting": drafting,
        "accepted": [{**asdict(setting), **row.accepted[setting].to_json()} for setting in report.settings],
        "identical": {"equal": row.equal, "total": row.total} if row.total else None,
        "divergences": [divergence.to_json() for divergence in row.divergences],
        "speedup": None if row.speedup is None else row.speedup.to_json(),
    }


def tables(report: HeadsReport) -> list[Table]:
    """Build the tables: what each is worth, what it costs, what is kept at each depth, and τ by kind of question."""
    return [_worth(report), _costs(report), _depths(report), *_kinds(report)]


def lines(report: HeadsReport) -> list[str]:
    """The papers' order, and what a reader must know of the tables."""
    labels = {row.name: row.label for row in report.rows}
    found = [f"{result.sentence(labels)} {INTERVALS}" for result in report.expectations]
    found += gaps_in_words([divergence for row in report.rows for divergence in row.divergences])
    counts = {"pairs": report.workload["pairs"], "pairs timed": report.workload["raced"]}
    for what, count in counts.items():
        if isinstance(count, int) and 0 < count < FEW_PAIRS:
            found.append(f"fewer than {FEW_PAIRS} {what}: the intervals are narrower than the truth")
    return [*found, *report.notes]


def _worth(report: HeadsReport) -> Table:
    heads = [*(setting.name for setting in report.settings), "identical"]
    if report.rows[0].speedup is not None:
        heads.append("× target alone")
    title = f"τ {INTERVALS}, {report.workload['pairs']} held-out pairs"
    made = table(title, "drafter", heads, TAU)
    for row in report.rows:
        taus = (str(row.accepted[setting].tau) for setting in report.settings)
        cells = [*taus, identical(row.equal if row.total else None, row.total)]
        if row.speedup is not None:
            cells.append(str(row.speedup))
        made.add_row(escape(row.label), *cells)
    return made


def _costs(report: HeadsReport) -> Table:
    times = report.times
    heads, caption = ["parameters", "of them trained", "stored MB", "min"], PARAMETERS
    if times is not None:
        wide = f"V({times.nodes + 1})"
        heads += ["ms a draft", f"/ {wide}", "/ t", "nodes"]
        caption += (
            f"\n{wide} = {times.wide.median * 1e3:.1f} ms, t = V(1) = {times.single.median * 1e3:.1f} ms, one request; "
            f"medians of {times.positions} positions, where all drafted in turn"
        )
    made = table("what it costs", "drafter", heads, caption)
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
        made.add_row(escape(row.label), *cells)
    return made


def _depths(report: HeadsReport) -> Table:
    """Tabulate the shares of drafts kept at each depth, of the greedy settings, or of the first."""
    chosen = [setting for setting in report.settings if setting.temperature == 0] or report.settings[:1]
    title = f"drafts kept at each depth: shares, pooled over {report.workload['pairs']} pairs"
    made = table(title, "drafter", [setting.name for setting in chosen])
    for row in report.rows:
        shares = (row.accepted[setting].per_position[:8] for setting in chosen)
        made.add_row(escape(row.label), *(" ".join(f"{share:.2f}" for share in each) for each in shares))
    return made


def _kinds(report: HeadsReport) -> list[Table]:
    """A line for each kind of question, so many drafters in a table."""
    setting, rows, found = report.settings[0], iter(report.rows), []
    while chosen := list(islice(rows, ABREAST)):
        heads = [escape(row.label) for row in chosen]
        made = table(f"τ by kind of question, {setting.name}", "kind", heads)
        for kind in chosen[0].accepted[setting].by_kind:
            made.add_row(kind, *(str(row.accepted[setting].by_kind[kind]) for row in chosen))
        found.append(made)
    return found


def plot(report: HeadsReport, path: Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the name; see `draw`."""
    save(draw(report), path)


def draw(report: HeadsReport) -> "Figure":
    """A row for each drafter: τ of its greedy trees and chains side by side, then the milliseconds of a draft."""
    from matplotlib.figure import Figure

    many = len(report.rows)
    figure = Figure(figsize=(11, 1.6 + 0.5 * many), layout="constrained")
    panels = [*figure.subplots(1, 1 if report.times is None else 2, sharey=True, squeeze=False)[0]]
    _taus(panels[0], report)
    if report.times is not None:
        _drafts(panels[1], report.times, [row.name for row in report.rows])
    panels[0].set_yticks(range(many), [row.label for row in report.rows])
    panels[0].set_ylim(many - 0.5, -0.5)  # the first on top
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{report.workload['pairs']} held-out pairs", fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _taus(axes: "Axes", report: HeadsReport) -> None:
    """A bar for each setting at the first one's temperature, its interval across its end."""
    first = report.settings[0]
    settings = [setting for setting in report.settings if setting.temperature == first.temperature]
    height, widest = GROUP / len(settings), 1.0
    for index, (setting, colour) in enumerate(zip(settings, COLOURS, strict=False)):
        taus = [row.accepted[setting].tau for row in report.rows]
        rows = [row - GROUP / 2 + (index + 0.5) * height for row in range(len(taus))]
        interval_bars(axes, rows, taus, height=height, color=colour, label=setting.name)
        for row, tau in zip(rows, taus, strict=True):
            axes.text(tau.high, row, f" {tau.value:.2f}", va="center", fontsize=8)
        widest = max(widest, *(tau.high for tau in taus))
    axes.axvline(1, color="black", lw=0.8, ls=":")
    axes.set_xlim(0, widest * 1.2)
    axes.set_xlabel("τ, tokens per pass [95 %]")


def _drafts(axes: "Axes", times: DraftTimes, names: Sequence[str]) -> None:
    """A bar for each drafter, and lines where the target's passes are."""
    values = [times.drafters[name].draft.median * 1e3 for name in names]
    wide, single = times.wide.median * 1e3, times.single.median * 1e3
    axes.barh(range(len(values)), values, height=GROUP / 2, color="#0969da")
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:.1f}", va="center", fontsize=8)
    axes.axvline(wide, color="#953800", lw=1.2, label=f"V({times.nodes + 1})")
    axes.axvline(single, color="#953800", lw=1.2, ls=":", label="t = V(1)")
    axes.set_xlim(0, max(*values, wide, single) * 1.2)
    axes.set_xlabel(f"ms a draft of up to {times.nodes} nodes")
