"""The trained drafters as one picture: τ of trees and chains with their intervals, and what a draft costs."""

from pathlib import Path
from typing import TYPE_CHECKING

from crossdraft.bench.plot import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crossdraft.bench.heads import HeadsReport

COLOURS = ("#1a7f37", "#8c959f")  # of trees and of chains
GROUP = 0.8  # height of a drafter's bars together; two drafters are 1 apart


def plot(report: "HeadsReport", path: Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the name; see `draw`."""
    save(draw(report), path)


def draw(report: "HeadsReport") -> "Figure":
    """A row for each drafter: τ of its greedy trees and chains side by side, then the milliseconds of a draft."""
    from matplotlib.figure import Figure

    many = len(report.rows)
    figure = Figure(figsize=(11, 1.6 + 0.5 * many), layout="constrained")
    panels = [*figure.subplots(1, 1 if report.times is None else 2, sharey=True, squeeze=False)[0]]
    _taus(panels[0], report)
    if report.times is not None:
        _drafts(panels[1], report)
    panels[0].set_yticks(range(many), [row.label for row in report.rows])
    panels[0].set_ylim(many - 0.5, -0.5)  # the first on top
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{report.workload['pairs']} held-out pairs", fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _taus(axes: "Axes", report: "HeadsReport") -> None:
    """A bar for each part at the first one's temperature, its interval across its end."""
    first = report.settings[0]
    settings = [setting for setting in report.settings if setting.temperature == first.temperature]
    height, widest = GROUP / len(settings), 1.0
    for place, (setting, colour) in enumerate(zip(settings, COLOURS, strict=False)):
        taus = [row.accepted[setting].tau for row in report.rows]
        rows = [row - GROUP / 2 + (place + 0.5) * height for row in range(len(taus))]
        values, arms = [tau.value for tau in taus], list(zip(*(tau.arms for tau in taus), strict=True))
        axes.barh(rows, values, height=height, color=colour, label=setting.name)
        axes.errorbar(values, rows, xerr=arms, fmt="none", ecolor="#424a53", elinewidth=0.9, capsize=0)
        for row, tau in zip(rows, taus, strict=True):
            axes.text(tau.high, row, f" {tau.value:.2f}", va="center", fontsize=8)
        widest = max(widest, *(tau.high for tau in taus))
    axes.axvline(1, color="black", lw=0.8, ls=":")
    axes.set_xlim(0, widest * 1.2)
    axes.set_xlabel("τ, tokens per pass [95 %]")


def _drafts(axes: "Axes", report: "HeadsReport") -> None:
    """A bar for each drafter, and lines where the target's passes are."""
    times = report.times
    if times is None:
        return
    values = [times.drafters[row.name].draft.median * 1e3 for row in report.rows]
    wide, single = times.wide.median * 1e3, times.single.median * 1e3
    axes.barh(range(len(values)), values, height=GROUP / 2, color="#0969da")
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:.1f}", va="center", fontsize=8)
    axes.axvline(wide, color="#953800", lw=1.2, label=f"V({times.nodes + 1})")
    axes.axvline(single, color="#953800", lw=1.2, ls=":", label="t = V(1)")
    axes.set_xlim(0, max(*values, wide, single) * 1.2)
    axes.set_xlabel(f"ms a draft of up to {times.nodes} nodes")
