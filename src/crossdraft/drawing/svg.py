"""A drawing as SVG: the same input gives the same bytes; readable on light and dark pages."""

from html import escape

from crossdraft.drawing.shapes import PALETTE, Box, Drawing, Line, TextLine, clean

FACES = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"


def to_svg(drawing: Drawing) -> str:
    """The text of a drawing as an SVG file. The card has a ground of its own, so that text contrasts on any page."""
    width, height = drawing.width, drawing.height
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    frame = f'<rect class="card edge" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="10"/>'
    parts = [head, f"<title>{escape(clean(drawing.title))}</title>", f"<style>{_style(drawing)}</style>", frame]
    return "\n".join([*parts, *map(_shape, drawing.shapes), "</svg>"]) + "\n"


def _style(drawing: Drawing) -> str:
    drawn = sorted({shape.style for shape in drawing.shapes if isinstance(shape, Line)} - {"border"})
    light, dark = (
        "".join(f".{name}{{fill:{colours[page]}}}" for name, colours in PALETTE.items() if name != "border")
        + f".edge{{stroke:{PALETTE['border'][page]}}}"
        + "".join(f".line-{name}{{stroke:{PALETTE[name][page]};stroke-width:1.6}}" for name in drawn)
        for page in (0, 1)
    )
    return f"\ntext{{font-family:{FACES};white-space:pre}}\n{light}\n@media(prefers-color-scheme:dark){{{dark}}}\n"


def _shape(shape: Box | Line | TextLine) -> str:
    if isinstance(shape, Box):
        return _box(shape)
    if isinstance(shape, Line):
        dash = ' stroke-dasharray="4 3"' if shape.dashed else ""
        ends = f'x1="{shape.x1:.2f}" y1="{shape.y1:g}" x2="{shape.x2:.2f}" y2="{shape.y2:g}"'
        style = "edge" if shape.style == "border" else f"line-{shape.style}"
        return f'<line class="{style}" {ends}{dash}/>'
    return _text(shape)


def _box(box: Box) -> str:
    size = f'x="{box.x:.2f}" y="{box.y:g}" width="{box.width:.2f}" height="{box.height:g}"'
    tip = f"<title>{escape(clean(box.tip))}</title>" if box.tip else ""
    return f'<rect class="{box.style}" {size} rx="2">{tip}</rect>'


def _text(text: TextLine) -> str:
    weight = ' font-weight="700"' if text.bold else ""
    where = f'x="{text.x:.2f}" y="{text.y:g}" font-size="{text.size:g}" text-anchor="{text.anchor}"{weight}'
    spans = "".join(f'<tspan class="{run.style}">{escape(run.text)}</tspan>' for run in text.runs)
    return f'<text {where} xml:space="preserve">{spans}</text>'
