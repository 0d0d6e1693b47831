"""The timeline as lines of text: one lane for the drafter, one for the target, on one axis.

So they look (an answer of four rounds):

         0            50           100          150 ms
drafter  ░░read░░▓▓▓hidden draft▓▓▓       ▒▒   ▒▒
target   ░░░░░░░░░░prefill░░░░░░░░░░███████  ███  ███
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from crossdraft.engine.timeline import Span, Timeline

FIRST = ("drafter", "target")  # the order of the lanes; others follow
BUSY = 0.25  # a cell is drawn if its spans fill more of it than this


@dataclass(frozen=True)
class Look:
    """How the spans of one meaning are drawn."""

    meaning: str
    glyph: str
    style: str
    names: tuple[str, ...]


LOOKS = (
    Look("reads", "░", "blue", ("prepare", "encode", "prefill", "read")),
    Look("drafts while the target reads", "▓", "green", ("hidden draft",)),
    Look("drafts", "▒", "cyan", ("draft", "resync")),
    Look("prepares for the verdict", "·", "cyan", ("ahead",)),
    Look("verifies", "█", "yellow", ("ride-along", "verify")),
)
OTHER = Look("does something else", "▚", "magenta", ())


def look_of(name: str) -> Look:
    """The look of a span of that name."""
    return next((look for look in LOOKS if name in look.names), OTHER)


def lanes_of(timeline: Timeline) -> list[str]:
    """The lanes in the order in which they are drawn."""
    names = {span.lane for span in timeline.spans}
    return [lane for lane in FIRST if lane in names] + sorted(names - set(FIRST))


def end_of(timeline: Timeline) -> float:
    """Seconds from the start of the first span to the end of the last."""
    return max((span.end for span in timeline.spans), default=0.0) - timeline.start


def cells(spans: Sequence[Span], start: float, step: float, width: int) -> list[str]:
    """The name of the span that fills most of each cell; empty where the lane is idle.

    Args:
        spans: of one lane.
        start: time at the left edge of the first cell, in seconds.
        step: seconds per cell.
        width: number of cells.
    """
    row = []
    for cell in range(width):
        left = start + cell * step
        filled = [(span.overlap(left, left + step), span.name) for span in spans]
        busy = sum(seconds for seconds, _ in filled) > BUSY * step
        row.append(max(filled)[1] if busy else "")
    return row


def draw(row: Sequence[str]) -> Text:
    """A lane's cells as one line; a run of cells wears its name if there is room for it."""
    line = Text()
    for name, group in groupby(row):
        count = len(list(group))
        if not name:
            line.append(" " * count)
            continue
        look = look_of(name)
        label = name if len(name) + 2 <= count else ""
        line.append(label.center(count, "\0").replace("\0", look.glyph), look.style)
    return line


def ticks(seconds: float, most: int) -> list[float]:
    """Round times from 0 on, at most `most` steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.17, 4)
    [0.0, 0.05, 0.1, 0.15]
    """
    power = 10.0 ** math.floor(math.log10(seconds / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if seconds <= factor * power * most)
    return [round(mark * step, 9) for mark in range(int(seconds / step + 1e-9) + 1)]


def labels(marks: Sequence[float], seconds: float) -> list[str]:
    """Texts of the marks of an axis of that length; the last one carries the unit."""
    unit, scale = ("s", 1.0) if seconds >= 5 else ("ms", 1e3)
    texts = [f"{mark * scale:g}" for mark in marks]
    return [*texts[:-1], f"{texts[-1]} {unit}"]


def axis(seconds: float, width: int) -> str:
    """The axis of `width` cells for a span of time; the last label may reach beyond it."""
    marks = ticks(seconds, max(1, width // 10))
    line = ""
    for mark, label in zip(marks, labels(marks, seconds), strict=True):
        line = line.ljust(round(mark / seconds * width)) + label
    return line


def timeline_text(timeline: Timeline, width: int) -> Text:
    """Axis, lanes and legend, `width` characters wide; empty if nothing was recorded."""
    names, seconds = lanes_of(timeline), end_of(timeline)
    if not seconds:
        return Text()
    margin = max(map(len, names)) + 2
    room = max(10, width - margin - 4)
    lines = [Text(" " * margin + axis(seconds, room), "dim")]
    for name in names:
        spans = [span for span in timeline.spans if span.lane == name]
        line = Text(name.ljust(margin)) + draw(cells(spans, timeline.start, seconds / room, room))
        line.rstrip()
        lines.append(line)
    used = {look_of(span.name) for span in timeline.spans}
    key = Text("   ").join(
        Text(f"{look.glyph} {look.meaning}", look.style) for look in (*LOOKS, OTHER) if look in used
    )
    return Text("\n").join([*lines, Text(" " * margin) + key])
