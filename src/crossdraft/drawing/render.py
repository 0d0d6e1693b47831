"""A drawing as SVG, the same bytes for the same drawing, or as PNG by matplotlib on a light page."""

from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from crossdraft.drawing.shapes import PALETTE, Box, Drawing, Line, TextLine, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FACES = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"
DPI, SHARPNESS = 100, 2  # a pixel of the drawing is two of the picture
PNG_FACE, PNG_ADVANCE = "DejaVu Sans Mono", 0.602


def to_svg(drawing: Drawing) -> str:
    """The whole file. The card has a ground of its own, so that text contrasts with it wherever it is shown."""
    width, height = drawing.width, drawing.height
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    frame = f'<rect class="card edge" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="10"/>'
    parts = [head, f"<title>{escape(drawing.title)}</title>", f"<style>{_svg_style()}</style>", frame]
    return "\n".join([*parts, *map(_svg_shape, drawing.shapes), "</svg>"]) + "\n"


def _svg_style() -> str:
    light, dark = (
        "".join(f".{name}{{fill:{colours[page]}}}" for name, colours in PALETTE.items() if name != "border")
        + f".edge{{stroke:{PALETTE['border'][page]}}}"
        for page in (0, 1)
    )
    return f"\ntext{{font-family:{FACES};white-space:pre}}\n{light}\n@media(prefers-color-scheme:dark){{{dark}}}\n"


def _svg_shape(shape: Box | Line | TextLine) -> str:
    if isinstance(shape, Box):
        return _svg_box(shape)
    if isinstance(shape, Line):
        dash = ' stroke-dasharray="4 3"' if shape.dashed else ""
        ends = f'x1="{shape.x1:.2f}" y1="{shape.y1:g}" x2="{shape.x2:.2f}" y2="{shape.y2:g}"'
        return f'<line class="edge" {ends}{dash}/>'
    return _svg_text(shape)


def _svg_box(box: Box) -> str:
    size = f'x="{box.x:.2f}" y="{box.y:g}" width="{box.width:.2f}" height="{box.height:g}"'
    tip = f"<title>{escape(box.tip)}</title>" if box.tip else ""
    return f'<rect class="{box.style}" {size} rx="2">{tip}</rect>'


def _svg_text(text: TextLine) -> str:
    weight = ' font-weight="700"' if text.bold else ""
    where = f'x="{text.x:.2f}" y="{text.y:g}" font-size="{text.size:g}" text-anchor="{text.anchor}"{weight}'
    spans = "".join(f'<tspan class="{run.style}">{escape(run.text)}</tspan>' for run in text.runs)
    return f'<text {where} xml:space="preserve">{spans}</text>'


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
            _png_text(axes, shape)
    file = BytesIO()
    with rc_context({"text.hinting": "none"}):  # which would widen letters to whole pixels
        figure.savefig(file, format="png", dpi=DPI * SHARPNESS)
    return file.getvalue()


def _png_text(axes: "Axes", text: TextLine) -> None:
    """Each run where the one before it ends: the face is monospaced."""
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
