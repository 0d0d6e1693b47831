"""The timeline as lines of text: one lane for the drafter, one for the target, on one axis.

So they look (an answer of four rounds):

         0            50           100          150 ms
drafter  ░prefill▓▓▓hidden draft▓▓▓       ▒▒   ▒▒
target   ░░░░░░░░░░prefill░░░░░░░░░░███████  ███  ███
"""

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from crossdraft.drawing.axis import labels, ticks
from crossdraft.drawing.figures import Baseline
from crossdraft.drawing.kinds import DECODE, KINDS, OTHER, Kind, end_of, kind_of, lanes_of, plain
from crossdraft.engine.request import Answer
from crossdraft.engine.timeline import Span

BUSY = 0.25  # a cell is drawn if its spans fill more of it than this
ALONE = "target alone"


def cells(spans: Sequence[Span], start: float, step: float, width: int) -> list[Kind | None]:
    """The kind of span that fills most of each cell; None where the lane is idle.

    Args:
        spans: of one lane.
        start: time at the left edge of the first cell, in seconds.
        step: seconds per cell.
        width: number of cells.
    """
    row: list[Kind | None] = []
    for cell in range(width):
        left = start + cell * step
        filled = [(span.overlap(left, left + step), kind_of(span)) for span in spans]
        busy = sum(seconds for seconds, _ in filled) > BUSY * step
        row.append(max(filled, key=lambda pair: pair[0])[1] if busy else None)
    return row


def draw(row: Sequence[Kind | None]) -> Text:
    """A lane's cells as one line; a run of cells carries its label if there is room for it."""
    line = Text()
    for kind, group in groupby(row):
        count = len(list(group))
        if kind is None:
            line.append(" " * count)
            continue
        label = kind.label if len(kind.label) + 2 <= count else ""
        line.append(label.center(count, "\0").replace("\0", kind.glyph), kind.colour)
    return line


def axis(seconds: float, width: int) -> str:
    """The axis of `width` cells for a span of time; the last label may reach beyond it."""
    marks = ticks(seconds, max(1, width // 10))
    line = ""
    for mark, label in zip(marks, labels(marks, seconds), strict=True):
        line = line.ljust(round(mark / seconds * width)) + label
    return line


def timeline_text(answer: Answer, width: int, baseline: Baseline | None = None) -> Text:
    """Axis, lanes and legend, `width` characters wide; empty if nothing was recorded.

    With a baseline there is a lane for the target alone, on the same axis.
    """
    rows = [(name, plain(answer), name, answer.timeline) for name in lanes_of(answer.timeline)]
    if baseline is not None:
        rows.append((ALONE, plain(baseline.answer), "target", baseline.answer.timeline))
    seconds = max((end_of(timeline) for *_, timeline in rows), default=0.0)
    if not seconds:
        return Text()
    margin = max(len(name) for name, *_ in rows) + 2
    room = max(10, width - margin - 8)  # the last mark's label reaches beyond its place
    lines = [Text(" " * margin + axis(seconds, room), "dim")]
    used: set[Kind] = set()
    for name, spans, lane, timeline in rows:
        own = [span for span in spans if span.lane == lane]
        used |= {kind_of(span) for span in own}
        line = Text(name.ljust(margin)) + draw(cells(own, timeline.start, seconds / room, room))
        line.rstrip()
        lines.append(line)
    key = [Text(f"{kind.glyph} {kind.meaning}", kind.colour) for kind in (*KINDS, DECODE, OTHER) if kind in used]
    return Text("\n").join([*lines, *wrapped(key, margin, width)])


def wrapped(items: Sequence[Text], margin: int, width: int) -> list[Text]:
    """Items side by side, three blanks apart, in as many lines as a terminal of that width needs."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + 3 + item.cell_len <= width:
            lines[-1].append("   ").append_text(item)
        else:
            lines.append(Text(" " * margin) + item)
    return lines
