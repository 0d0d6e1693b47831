"""The time per stage as stacked bars."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

if TYPE_CHECKING:
    from crossdraft.bench.suite import Report

STAGES = {  # in the order of an answer, with colours that stay apart in greyscale too
    "prepare": "#bbbbbb",
    "encode": "#225588",
    "prefill": "#4488cc",
    "ride-along": "#88bbee",
    "draft": "#dd8833",
    "verify": "#559944",
    "engine": "#aa3355",
    "other": "#dddddd",
}

PER = {"answer": "", "token": " per token"}


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
    """Write a PNG: one bar per method, its stages stacked to the mean time of an answer, TTFT marked; speedup and τ."""
    from matplotlib.figure import Figure

    methods = report.methods[::-1]  # barh draws upwards
    figure = Figure(figsize=(9, 1.2 + 0.55 * len(methods)), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(methods)
    names = [method.label for method in methods]
    for stage, colour in STAGES.items():
        widths = [method.stage_means.get(stage, 0.0) * 1e3 for method in methods]
        if any(widths):
            axes.barh(names, widths, left=left, color=colour, label=stage, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, (method, end) in enumerate(zip(methods, left, strict=True)):
        ttft = method.ttft.median * 1e3
        axes.plot(
            [ttft, ttft], [row - 0.35, row + 0.35], color="black", lw=1.5, label="TTFT" if row == 0 else None
        )
        speedup = method.speedups.get("target")
        times = f", {speedup} ×{PER[method.per]}" if speedup else ""
        drafted = f", τ {method.tau:.1f}" if method.tau > 1 else ""
        axes.text(end, row, f" {end:.0f} ms{times}{drafted}", va="center")
    axes.set_xlim(0, max(left) * 1.45)
    axes.set_xlabel("mean time of an answer on the target's lane, ms")
    work = report.workload
    axes.set_title(
        f"{work['pairs']} held-out pairs × {work['repeats']}, {work['mean_tokens']} tokens on average",
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
