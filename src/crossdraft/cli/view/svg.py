"""An answer and its timeline as a drawing: the same input gives the same bytes; readable on light and dark pages."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from crossdraft.cli.view.growing import MEANINGS
from crossdraft.cli.view.lanes import LOOKS, OTHER, Look, end_of, labels, lanes_of, look_of, ticks
from crossdraft.cli.view.summary import figures
from crossdraft.engine.request import Answer, Origin
from crossdraft.engine.timeline import Span, Timeline
from crossdraft.files import atomic_path

WIDTH, MARGIN, LEFT = 960, 28, 104  # of the card, around everything, left of the lanes
LETTER = 8.4  # advance of a character at 14 px in a monospaced face
LINE, LANE, GAP = 22, 34, 12

# The card has a ground of its own, so that text contrasts with it wherever the drawing is shown.
STYLE = """
.card{fill:#ffffff;stroke:#d0d7de}.ink{fill:#1f2328}.faint{fill:#656d76}.rule{stroke:#d0d7de}
.hidden{fill:#1a7f37}.drafted{fill:#0969da}.target{fill:#1f2328}.label{fill:#ffffff}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}.small{font-size:12px}.strong{font-weight:700}
@media(prefers-color-scheme:dark){
.card{fill:#0d1117;stroke:#30363d}.ink{fill:#e6edf3}.faint{fill:#8d96a0}.rule{stroke:#30363d}
.hidden{fill:#3fb950}.drafted{fill:#58a6ff}.target{fill:#e6edf3}}
"""
FILLS = {"blue": "#6e7781", "green": "#2da44e", "cyan": "#218bff", "yellow": "#bc4c00", "magenta": "#8250df"}


@dataclass(frozen=True)
class Run:
    """Words of one origin on one line of the answer."""

    text: str
    origin: Origin


def timeline_svg(question: str, answer: Answer) -> str:
    """The drawing: question, answer by origin, both lanes on one axis, figures."""
    lines = wrap(answer, int((WIDTH - 2 * MARGIN) / LETTER))
    y = MARGIN + 14.0
    parts = [_text(MARGIN, y, question, "faint")]
    for line in lines:
        y += LINE
        parts.append(_runs(y, line))
    y += LINE + 4
    parts.append(_legend(y))
    y += GAP
    top = y
    body, y = _lanes(answer.timeline, top)
    parts += [*body, *_figures(answer, y + LINE + GAP)]
    rows = -(-len(figures(answer)) // 3)
    height = y + LINE + GAP + rows * LINE + MARGIN - 8
    frame = f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">'
    title = f"<title>{escape(question)}</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", frame, *parts, "</svg>"]) + "\n"


def save_svg(path: str | os.PathLike[str], question: str, answer: Answer) -> None:
    """Write the drawing, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(timeline_svg(question, answer), encoding="utf-8")


def wrap(answer: Answer, width: int) -> list[list[Run]]:
    """The answer in lines of at most `width` characters, broken between words where they have blanks."""
    origins = [piece.origin for piece in answer.pieces for _ in piece.text]
    text = "".join(piece.text for piece in answer.pieces).replace("\n", " ")
    start = len(text) - len(text.lstrip())
    lines: list[list[Run]] = []
    while start < len(text):
        end = len(text)
        if end - start > width:
            blank = text.rfind(" ", start, start + width + 1)
            end = blank if blank > start else start + width
        lines.append(list(_group(text, origins, start, end)))
        start = end + (text[end : end + 1] == " ")
    return lines


def _group(text: str, origins: Sequence[Origin], start: int, end: int) -> Iterator[Run]:
    """Neighbouring characters of one origin as one run."""
    at = start
    for here in range(start, end):
        if here + 1 == end or origins[here + 1] is not origins[at]:
            yield Run(text[at : here + 1], origins[at])
            at = here + 1


def _runs(y: float, line: Sequence[Run]) -> str:
    spans = "".join(f'<tspan class="{run.origin.value}">{escape(run.text)}</tspan>' for run in line)
    return f'<text x="{MARGIN}" y="{y:g}" xml:space="preserve" class="strong">{spans}</text>'


def _legend(y: float) -> str:
    spans = "".join(
        f'<tspan class="{origin.value}">■ </tspan><tspan class="faint">{meaning}   </tspan>'
        for origin, meaning in MEANINGS.items()
    )
    return f'<text x="{MARGIN}" y="{y:g}" xml:space="preserve" class="small">{spans}</text>'


def _lanes(timeline: Timeline, top: float) -> tuple[list[str], float]:
    """Axis and lanes from `top` on; also where they end."""
    seconds, lanes = end_of(timeline), lanes_of(timeline)
    if not seconds:
        return [], top
    scale = (WIDTH - LEFT - MARGIN) / seconds
    bottom = top + LINE + len(lanes) * (LANE + GAP)
    parts = []
    marks = ticks(seconds, 8)
    for mark, label in zip(marks, labels(marks, seconds), strict=True):
        x = LEFT + mark * scale
        parts.append(f'<line class="rule" x1="{x:.2f}" y1="{top + LINE:g}" x2="{x:.2f}" y2="{bottom:g}"/>')
        anchor = "end" if x > WIDTH - MARGIN - 40 else "start" if not mark else "middle"
        parts.append(_text(x, top + 14, label, "faint small", anchor))
    for row, lane in enumerate(lanes):
        y = top + LINE + GAP / 2 + row * (LANE + GAP)
        parts.append(_text(MARGIN, y + LANE / 2 + 5, lane, "ink"))
        spans = sorted((span for span in timeline.spans if span.lane == lane), key=lambda span: span.start)
        parts += [
            _span(span, LEFT + (span.start - timeline.start) * scale, span.seconds * scale, y)
            for span in spans
        ]
    parts.append(_key(timeline, bottom + 16))
    return parts, bottom + 16


def _span(span: Span, x: float, width: float, y: float) -> str:
    """One span, with its name if there is room, and a tooltip."""
    tokens = f", {span.tokens} tokens" if span.tokens else ""
    tip = f"<title>{escape(span.name)}: {span.seconds * 1e3:.2f} ms{tokens}</title>"
    fill = FILLS[look_of(span.name).style]
    box = f'<rect x="{x:.2f}" y="{y:g}" width="{max(width, 0.5):.2f}" height="{LANE}" rx="2" fill="{fill}">{tip}</rect>'
    if width < (len(span.name) + 2) * LETTER * 12 / 14:
        return box
    return box + _text(x + width / 2, y + LANE / 2 + 4, span.name, "label small", "middle")


def _key(timeline: Timeline, y: float) -> str:
    used = {look_of(span.name) for span in timeline.spans}
    looks: list[Look] = [look for look in (*LOOKS, OTHER) if look in used]
    spans = "".join(
        f'<tspan fill="{FILLS[look.style]}">■ </tspan><tspan class="faint">{look.meaning}   </tspan>'
        for look in looks
    )
    return f'<text x="{LEFT}" y="{y:g}" xml:space="preserve" class="small">{spans}</text>'


def _figures(answer: Answer, y: float) -> list[str]:
    """The figures in rows of three; a lossy rule has the last row to itself."""
    column = (WIDTH - 2 * MARGIN) / 3
    parts = []
    for place, (what, value) in enumerate(short_figures(answer)):
        x, row = MARGIN + (place % 3) * column, y + (place // 3) * LINE
        spans = (
            f'<tspan class="faint">{escape(what)} </tspan><tspan class="ink strong">{escape(value)}</tspan>'
        )
        parts.append(f'<text x="{x:.2f}" y="{row:g}" xml:space="preserve">{spans}</text>')
    return parts


def short_figures(answer: Answer) -> list[tuple[str, str]]:
    """`figures`, each cut where its first part ends, so that three stand beside each other."""
    return [(what.partition(" (")[0], value.partition(", ")[0]) for what, value in figures(answer)]


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.2f}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'
