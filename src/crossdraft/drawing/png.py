"""A drawing as PNG, on a light page; matplotlib draws it, and brings its own monospaced face."""

from io import BytesIO
from typing import TYPE_CHECKING

from crossdraft.drawing.shapes import PALETTE, Box, Drawing, Line, TextLine, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI, SHARPNESS = 100, 2  # a pixel of the drawing is two of the picture
FACE, ADVANCE_OF_FACE = "DejaVu Sans Mono", 0.602


def to_png(drawing: Drawing) -> bytes:
    """The whole file.

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
            axes.plot(*ends, color=_colour(shape.style), lw=0.7, ls="--" if shape.dashed else "-", zorder=0)
        else:
            _text(axes, shape)
    file = BytesIO()
    with rc_context({"text.hinting": "none"}):  # which would widen letters to whole pixels
        figure.savefig(file, format="png", dpi=DPI * SHARPNESS)
    return file.getvalue()


def _text(axes: "Axes", text: TextLine) -> None:
    """Each run where the one before it ends: the face is monospaced."""
    advance = text.size * ADVANCE_OF_FACE
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
    x = text.x - before * columns(text.text) * advance
    for run in text.runs:
        axes.text(
            x,
            text.y,
            run.text,
            color=_colour(run.style),
            fontfamily=FACE,
            fontsize=text.size * 72 / DPI,
            fontweight="bold" if text.bold else "normal",
            parse_math=False,
        )
        x += columns(run.text) * advance


def _colour(style: str) -> str:
    return PALETTE[style][0]
