"""A report as one picture: the time per stage as stacked bars, and speedup and τ with their intervals."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crossdraft.bench.statistics import Interval
    from crossdraft.bench.suite import Report
    from crossdraft.bench.summary import Method

STAGES = {  # in the order of an answer, with colours that stay apart in greyscale too
    "prepare": "#bbbbbb",
    "encode": "#225588",
    "prefill": "#4488cc",
    "ride-along": "#88bbee",
    "draft": "#dd8833",
    "communication": "#eecc99",
    "verify": "#559944",
    "engine": "#aa3355",
    "other": "#dddddd",
}

PER = {"answer": "", "token": " per token"}
SPEEDUP, TAU, MEMORY = "#225588", "#559944", "#777777"
PROVISIONAL = "first provisional"
ROW = 0.7  # height of a bar; two rows are 1 apart


def check_plot(path: Path) -> None:
    """Refuse what `plot` could not write, before minutes are spent on what it should show.

    Raises:
        CrossdraftError: the name is no PNG's.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if path.suffix.lower() != ".png":
        raise CrossdraftError(f"--plot writes PNG; name a file that ends in .png, not {path}.")
    import_module("matplotlib.figure")


def plot(report: "Report", path: Path) -> None:
    """Write a PNG: a row per method with its time by stage, its speedup and its τ; see `draw`."""
    with atomic_path(path) as temporary:
        draw(report).savefig(temporary, dpi=150, format="png")


def draw(report: "Report") -> "Figure":
    """One row per method: its stages stacked to the mean time of an answer, first tokens marked; speedup; τ; memory.

    Speedup and τ have their 95 % bootstrap intervals as error bars. The speedup is the headline's, against the faster
    target alone. Without a baseline there is no speedup, and without measured memory no panel for it.
    """
    from matplotlib.figure import Figure

    methods = report.methods[::-1]  # barh draws upwards
    against = methods[0].against
    memory = [found.total for method in methods if (found := report.footprints.get(method.name))]
    figure = Figure(figsize=(12, 1.4 + 0.4 * len(methods)), layout="constrained")
    widths = [2.4, *([1] if against else []), 1, *([0.8] if memory else [])]
    times, *panels = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    _stages(times, methods)
    if against is not None:
        label = f"speedup over {against}{PER[methods[0].per]} [95 %]"
        _intervals(panels[0], methods, [method.speedups[against] for method in methods], label, SPEEDUP)
    _intervals(
        panels[1 if against else 0],
        methods,
        [method.tau for method in methods],
        "τ, tokens per pass [95 %]",
        TAU,
    )
    if memory:
        _memory(panels[-1], [value or 0.0 for value in memory])
    work = report.workload
    figure.suptitle(
        f"{work['pairs']} held-out pairs × {work['repeats']}, {work['mean_tokens']} tokens on average, "
        + ("from files" if work.get("files") else "clips in memory"),
        fontsize=10,
    )
    for axes in (times, *panels):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=9, frameon=False, fontsize=9)
    return figure


def _stages(axes: "Axes", methods: "list[Method]") -> None:
    """The mean time of an answer by stage, and marks where its first tokens are there: final, and provisional."""
    left = [0.0] * len(methods)
    names = [method.label for method in methods]
    for stage, colour in STAGES.items():
        widths = [method.stage_means.get(stage, 0.0) * 1e3 for method in methods]
        if any(widths):
            axes.barh(names, widths, left=left, color=colour, label=stage, height=ROW)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, (method, end) in enumerate(zip(methods, left, strict=True)):
        ttft, rows = method.ttft.median * 1e3, [row - ROW / 2, row + ROW / 2]
        axes.plot([ttft, ttft], rows, color="black", lw=1.5, label="TTFT" if row == 0 else None)
        if method.provisional is not None:
            at = method.provisional.median * 1e3
            drawn = axes.get_legend_handles_labels()[1]
            label = None if PROVISIONAL in drawn else PROVISIONAL
            axes.plot([at, at], rows, color="black", lw=1.5, ls=":", label=label)
        axes.text(end, row, f" {end:.0f} ms", va="center")
    axes.set_xlim(0, max(left) * 1.15)
    axes.set_xlabel("mean time of an answer on the target's lane, ms")


def _memory(axes: "Axes", values: list[float]) -> None:
    """A bar for the peak memory of each, all its processes together."""
    axes.barh(range(len(values)), values, height=ROW, color=MEMORY, alpha=0.6)
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:.0f}", va="center")
    axes.set_xlim(0, max(values) * 1.3)
    axes.set_xlabel("peak memory, MiB")


def _intervals(
    axes: "Axes", methods: "list[Method]", values: "list[Interval]", label: str, colour: str
) -> None:
    """A bar to each value, its interval across the bar's end; 1 is what the target alone has."""
    rows = range(len(methods))
    arms = list(zip(*(value.arms for value in values), strict=True))
    axes.barh(rows, [value.value for value in values], height=ROW, color=colour, alpha=0.45)
    axes.errorbar(
        [value.value for value in values],
        rows,
        xerr=arms,
        fmt="none",
        ecolor="black",
        elinewidth=1.2,
        capsize=3,
    )
    widest = max(value.high for value in values)
    for row, value in zip(rows, values, strict=True):
        axes.text(value.high, row, f" {value.value:.2f}", va="center")
    axes.axvline(1, color="black", lw=0.8, ls=":")
    axes.set_xlim(0, widest * 1.25)
    axes.set_xlabel(label)
