"""Pictures as files, by the ending of their name: SVG, or PNG by matplotlib on a light page."""

import os
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from crossdraft.drawing.figures import Baseline
from crossdraft.drawing.shapes import PALETTE, Box, Drawing, Line, TextLine, columns
from crossdraft.drawing.svg import to_svg
from crossdraft.drawing.timeline import timeline_drawing
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from crossdraft.engine.request import Answer

ENDINGS = (".svg", ".png")
DPI, SHARPNESS = 100, 2  # a pixel of the drawing is two of the picture
PNG_FACE, PNG_ADVANCE = "DejaVu Sans Mono", 0.602


def check_picture(path: Path) -> None:
    """Refuse a path that no picture can be written to, before time is spent on the contents.

    Raises:
        CrossdraftError: the name ends in neither .svg nor .png.
        ModuleNotFoundError: a PNG, and matplotlib is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise CrossdraftError(f"A picture is written as .svg or .png; name such a file, not {path}.")
    if path.suffix.lower() == ".png":
        import_module("matplotlib.figure")


def save_timeline(
    path: str | os.PathLike[str], question: str, answer: "Answer", baseline: Baseline | None = None
) -> None:
    """Write the picture of an answer as SVG or PNG, whole or not at all.

    Raises:
        CrossdraftError: the path has another ending, or the file cannot be written.
        ModuleNotFoundError: a PNG, and matplotlib is not installed.
    """
    save_drawing(timeline_drawing(question, answer, baseline), path)


def save_drawing(drawing: Drawing, path: str | os.PathLike[str]) -> None:
    """Write a picture as SVG or PNG, as `save_timeline`."""
    check_picture(Path(path))
    as_png = Path(path).suffix.lower() == ".png"
    content = to_png(drawing) if as_png else to_svg(drawing).encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def to_png(drawing: Drawing) -> bytes:
    """Render a drawing as the bytes of a PNG file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (it comes with the extra `plots`).
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(drawing.width / DPI, drawing.height / DPI), facecolor=_colour("card"))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            corner = shape.x, shape.y
            axes.add_patch(Rectangle(corner, shape.width, shape.height, color=_colour(shape.style), lw=0))
        elif isinstance(shape, Line):
            ends = [shape.x1, shape.x2], [shape.y1, shape.y2]
            width, order = (0.7, 0) if shape.style == "border" else (1.2, 2)
            axes.plot(*ends, color=_colour(shape.style), lw=width, ls="--" if shape.dashed else "-", zorder=order)
        else:
            _text(axes, shape)
    file = BytesIO()
    with rc_context({"text.hinting": "none"}):  # hinting would widen letters to whole pixels
        figure.savefig(file, format="png", dpi=DPI * SHARPNESS)
    return file.getvalue()


def _text(axes: "Axes", text: TextLine) -> None:
    """Write a line's runs one after another in a monospaced face."""
    advance = text.size * PNG_ADVANCE
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
    x = text.x - before * columns(text.text) * advance
    for run in text.runs:
        axes.text(
            x,
            text.y,
            run.text,
            color=_colour(run.style),
            fontfamily=PNG_FACE,
            fontsize=text.size * 72 / DPI,
            fontweight="bold" if text.bold else "normal",
            parse_math=False,
        )
        x += columns(run.text) * advance


def _colour(style: str) -> str:
    return PALETTE[style][0]
