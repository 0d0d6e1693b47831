"""A report as one picture: the time per stage as stacked bars, speedup and τ with their intervals, peak memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crossdraft_lab.bench.statistics import Interval
    from crossdraft_lab.bench.suite import BenchReport
    from crossdraft_lab.bench.summary import MethodSummary

# stage: (what it is called, colour), in the order of an answer. The colours are those of the timeline's picture.
STAGES = {
    "prepare": ("preprocess", "#afb8c1"),
    "encode": ("vision encoder", "#8c959f"),
    "prefill": ("prefill", "#424a53"),
    "ride-along": ("ride-along", "#953800"),
    "draft": ("draft", "#0969da"),
    "communication": ("wait for the drafter's process", "#80ccff"),
    "verify": ("verify", "#e16f24"),
    "decode": ("decode steps", "#bf8700"),
    "engine": ("engine", "#8250df"),
    "other": ("other", "#d8dee4"),
}

PER = {"answer": "", "token": " per token"}
SPEEDUP, TAU, MEMORY = "#8c959f", "#8c959f", "#d0d7de"
BEST, ERROR, INK, FAINT = "#1a7f37", "#424a53", "#1f2328", "#59636e"
PROVISIONAL = "first provisional text"
ROW = 0.66  # height of a bar; rows lie 1 from another
WIDTH, SIZE = 10.0, 10  # of the figure in inches, of its text in points
ROOM = 3.0  # length of an axis over its longest bar: the figures stand in a column after the bars


def plot(report: "BenchReport", path: Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the name; see `draw`."""
    save(draw(report), path)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG or SVG, whole or not at all; the same figure gives the same bytes."""
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    with atomic_path(path) as temporary, rc_context({"svg.hashsalt": "crossdraft"}):
        figure.savefig(temporary, dpi=160, format=kind, metadata={"Date": None} if kind == "svg" else None)


def draw(report: "BenchReport") -> "Figure":
    """One row per method, the slowest on top: its stages stacked to the mean time of an answer, first tokens marked.

    Next to it speedup and τ with their 95 % bootstrap intervals, and memory. The speedup is the headline's, against the
    faster target alone. Without a baseline there is no speedup, and without measured memory no panel for it.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    methods = sorted(report.methods, key=_mean_s, reverse=True)[::-1]  # barh draws upwards
    against = methods[0].against
    memory = [found.total for method in methods if (found := report.footprints.get(method.name))]
    widths = [1.9, *([1.3] if against else []), 1.3, *([0.7] if len(memory) == len(methods) else [])]
    with rc_context({"font.size": SIZE}):
        figure = Figure(figsize=(WIDTH, 2.3 + 0.36 * len(methods)), layout="constrained")
        times, *panels = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
        _stages(times, methods)
        if against is not None:
            values = [method.speedups[against] for method in methods]
            _intervals(panels[0], values, f"speedup over {against}{PER[methods[0].per]}", SPEEDUP)
        taus = [method.tau for method in methods]
        _intervals(panels[1 if against else 0], taus, "τ, tokens per verify pass", TAU)
        if len(widths) > 2 + (against is not None):
            _memory(panels[-1], [value or 0.0 for value in memory])
        for axes in (times, *panels):
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(left=False)
        figure.suptitle(title(report), x=0.01, ha="left", fontsize=SIZE + 3, fontweight="bold")
        figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=SIZE - 1)
        times.set_title(_workload(report), loc="left", fontsize=SIZE - 1, color=FAINT)
    return figure


def title(report: "BenchReport") -> str:
    """State what the report found: the fastest method, and by how much."""
    rated = [(found.value, found, method) for method in report.methods if (found := method.headline)]
    if not rated:
        return "Time of an answer by method"
    _, best, method = max(rated, key=lambda row: row[0])
    if best.value <= 1 or method.name in ("target", "target-all"):
        return f"No method is faster than {method.against}"
    speed = f"{best.value:.2f}x as fast as {method.against} [{best.ends()}; n={best.n}]"
    tokens = {True: ", identical tokens", False: ", NOT the same tokens", None: ""}[method.lossless]
    return f"{method.label}: {speed}{tokens}"


def _workload(report: "BenchReport") -> str:
    work = report.workload
    where = "from files" if work.get("files") else "clips in memory"
    return f"{work['pairs']} held-out pairs × {work['repeats']}, {work['mean_tokens']} tokens on average, {where}"


def _mean_s(method: "MethodSummary") -> float:
    """Mean time of an answer."""
    return sum(method.stage_means.values())


def _stages(axes: "Axes", methods: "list[MethodSummary]") -> None:
    """The mean time of an answer by stage, and marks where its first tokens are there: final, and provisional."""
    left = [0.0] * len(methods)
    names = [method.label for method in methods]
    axes.set_yticks(range(len(methods)), names)
    for stage, (name, colour) in STAGES.items():
        widths = [_stage_s(method, stage) * 1e3 for method in methods]
        if any(widths):
            axes.barh(range(len(methods)), widths, left=left, color=colour, label=name, height=ROW)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, (method, end) in enumerate(zip(methods, left, strict=True)):
        _mark(axes, method.ttft.median * 1e3, row, "-", "TTFT")
        if method.provisional is not None:
            _mark(axes, method.provisional.median * 1e3, row, ":", PROVISIONAL)
        axes.text(end, row, f" {end:.0f} ms", va="center", color=INK)
    axes.set_xlim(0, max(left) * 1.2)
    axes.set_xlabel("mean time of an answer, ms")


def _stage_s(method: "MethodSummary", stage: str) -> float:
    """Mean seconds of a stage; a method that drafts nothing has decode steps, not verify passes."""
    drafts = method.tau.value > 1
    if stage in ("verify", "decode"):
        return method.stage_means.get("verify", 0.0) if drafts == (stage == "verify") else 0.0
    return method.stage_means.get(stage, 0.0)


def _mark(axes: "Axes", at: float, row: int, style: str, label: str) -> None:
    drawn = axes.get_legend_handles_labels()[1]
    ends = [row - ROW / 2 - 0.08, row + ROW / 2 + 0.08]
    axes.plot([at, at], ends, color="black", lw=1.6, ls=style, label=None if label in drawn else label)


def _memory(axes: "Axes", values: list[float]) -> None:
    """A bar for the peak memory of each, all its processes together."""
    axes.barh(range(len(values)), values, height=ROW, color=MEMORY)
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:.0f}", va="center", color=INK)
    axes.set_xlim(0, max(values) * 1.8)
    axes.set_xticks([])
    axes.set_xlabel("memory, MiB")


def interval_bars(axes: "Axes", rows: "Sequence[float]", values: "Sequence[Interval]", **bars: Any) -> None:
    """A bar to each value, its interval as a thin line across its end; `bars` as matplotlib's `barh` takes them."""
    arms = list(zip(*(value.arms for value in values), strict=True))
    ends = [value.value for value in values]
    axes.barh(rows, ends, **bars)
    axes.errorbar(ends, rows, xerr=arms, fmt="none", ecolor=ERROR, elinewidth=0.9, capsize=0)


def _intervals(axes: "Axes", values: "list[Interval]", label: str, colour: str) -> None:
    """A bar to each value with its interval as a thin line, and both in figures; the best one stands out.

    An interval that reaches into the column of figures is cut there.
    """
    rows = range(len(values))
    best = max(range(len(values)), key=lambda row: values[row].value)
    longest = max(value.value for value in values)
    interval_bars(axes, rows, values, height=ROW, color=[BEST if row == best else colour for row in rows])
    for row, value in zip(rows, values, strict=True):
        shown = f"{_short(value.value)} [{_short(value.low)}, {_short(value.high)}]"
        weight = "bold" if row == best else "normal"
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        layout = {"va": "center", "ha": "right", "bbox": ground}
        axes.text(longest * ROOM, row, shown, color=INK, fontsize=SIZE - 1.5, fontweight=weight, **layout)
    axes.axvline(1, color=FAINT, lw=0.8, ls=":", zorder=0)
    axes.set_xlim(0, longest * ROOM)
    axes.set_xticks([0, 1] if longest < 4 else [0, round(longest)])
    axes.set_xlabel(label)


def _short(value: float) -> str:
    """Three digits at least, and no more than two after the point."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
