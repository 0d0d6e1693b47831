"""The curves of `bench growth` as one picture: time above, memory below, one column for each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crossdraft_lab.bench.growth import UNITS, GrowthResult, Side
from crossdraft_lab.bench.plot import FAINT, INK, SIZE, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, HF = "#0969da", "#8c959f"
WIDTH, HEIGHT = 3.4, 5.2  # inches of a column, and of the picture


def plot_growth(results: Sequence[GrowthResult], path: Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the name."""
    save(draw_growth(results), path)


def draw_growth(results: Sequence[GrowthResult]) -> "Figure":
    """Both axes are logarithmic: a straight line is a power, and its slope the exponent."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": SIZE}):
        figure = Figure(figsize=(max(2, len(results)) * WIDTH, HEIGHT), layout="constrained")
        panels = figure.subplots(2, len(results), squeeze=False, sharex="col")
        for column, result in enumerate(results):
            times, memory = panels[0][column], panels[1][column]
            _lines(times, result, lambda side: side.seconds * 1e3)
            _lines(memory, result, lambda side: None if not side.bytes else side.bytes / 1e6)
            times.set_title(f"{UNITS[result.of]}\n{_folded(result.weights)}", fontsize=SIZE - 2, color=INK, loc="left")
            memory.set_xlabel(result.of, color=FAINT)
        panels[0][0].set_ylabel("ms")
        panels[1][0].set_ylabel("MB above what was held")
        panels[0][0].legend(frameon=False)
    return figure


def _lines(axes: "Axes", result: GrowthResult, value_of: Callable[[Side], float | None]) -> None:
    for name, colour in (("ours", OURS), ("hf", HF)):
        sides: list[tuple[int, Side | None]] = [(point.size, getattr(point, name)) for point in result.points]
        found = [(size, value_of(side)) for size, side in sides if side is not None]
        shown = [(size, value) for size, value in found if value is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), marker="o", markersize=3, color=colour, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SIZE - 2)


def _folded(text: str) -> str:
    """A long title in lines."""
    return text.replace(", ", ",\n")
