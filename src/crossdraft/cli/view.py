"""Views of `ask`, `chat` and `demo`: an answer as it grows, its figures and timeline as text, and a JSON report.

The timeline has one lane for the drafter and one for the target, on one axis (an answer of four rounds):

         0            50           100          150 ms
drafter  ░prefill▓▓▓hidden draft▓▓▓       ▒▒   ▒▒
target   ░░░░░░░░░░prefill░░░░░░░░░░███████  ███  ███
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from crossdraft.cli.main import with_flags
from crossdraft.drawing.figures import Baseline, figures, origins
from crossdraft.drawing.kinds import (
    DECODE,
    KINDS,
    ORIGINS,
    OTHER,
    Kind,
    end_of,
    kind_of,
    labels,
    lanes_of,
    plain,
    ticks,
)
from crossdraft.engine.request import Answer, Origin, Piece
from crossdraft.engine.target import Target
from crossdraft.engine.timeline import Span, Timeline

REFRESHES = 12  # refreshes a second: more would take time from a target on the same cores
STYLES = {Origin.PROVISIONAL: "dim italic", Origin.HIDDEN: "green", Origin.DRAFTED: "cyan", Origin.TARGET: "bold"}
BUSY = 0.25  # a cell is drawn if its spans fill more of it than this
ALONE = "target alone"


def answer_console(*, plain: bool) -> Console:
    """Standard output; without escape codes if it is no terminal or colour is declined (https://no-color.org)."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if colour and not plain:
        return Console(highlight=False)
    return Console(color_system=None, force_terminal=False, highlight=False)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line unchanged: no markup is read in it, and it is not wrapped."""
    console.print(text, style=style, markup=False, soft_wrap=True)


@dataclass
class PartialAnswer:
    """An answer while it is streamed: its final and its provisional pieces, in order."""

    provisional: list[Piece] = field(default_factory=list)
    final: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Add a piece."""
        (self.provisional if piece.origin is Origin.PROVISIONAL else self.final).append(piece)

    def print(self, piece: Piece) -> None:
        """Add and print a piece if it is final."""
        if piece.origin is not Origin.PROVISIONAL:
            begun = any(known.text.strip() for known in self.final)
            self.add(piece)
            print(piece.text if begun else piece.text.lstrip(), end="", flush=True)

    @property
    def draft(self) -> str:
        """Provisional text after the final text; empty once the target has generated other text."""
        final = [token for piece in self.final for token in piece.tokens]
        drafted: list[int] = []
        rest: list[str] = []
        for piece in self.provisional:
            if len(drafted) >= len(final):
                rest.append(piece.text)
            drafted += piece.tokens
        return "".join(rest) if drafted[: len(final)] == final else ""

    def text(self) -> Text:
        """The whole answer, each part in the colour of its origin."""
        shown = Text()
        for piece in self.final:
            shown.append(piece.text, STYLES[piece.origin])
        shown.append(self.draft, STYLES[Origin.PROVISIONAL])
        return shown[len(shown.plain) - len(shown.plain.lstrip()) :]


@contextmanager
def live_view(console: Console | None) -> Iterator[Callable[[Piece], None]]:
    """Yield a function that shows the pieces of one answer as they come; without a console it shows nothing.

    In colours, provisional text is dim and is replaced, final text has the colour of its origin. Otherwise only final
    text is printed. The terminal is restored, whatever happens.
    """
    answer = PartialAnswer()
    if console is None:
        yield answer.add
    elif console.color_system is None:
        try:
            yield answer.print
        finally:
            if any(piece.text.strip() for piece in answer.final):
                print(flush=True)
    else:
        with Live(
            get_renderable=answer.text, console=console, refresh_per_second=REFRESHES, vertical_overflow="visible"
        ):
            try:
                yield answer.add
            finally:
                answer.provisional.clear()  # provisional pieces that are left were never committed


def show(
    console: Console, answer: Answer, target: Target, baseline: Baseline | None = None, drafter: str | None = None
) -> None:
    """Show figures below the answer: tokens by origin, drafter, times, timeline, log-probabilities, notes."""
    if console.is_terminal:
        console.print(legend(answer))
    console.print()
    shown = [*([] if drafter is None else [("drafter", drafter)]), *figures(answer, baseline)]
    margin = max(len(what) for what, _ in shown) + 2
    for what, value in shown:
        if console.is_terminal:  # a long value continues below itself
            row = Table.grid(Column(width=margin, style="dim"), Column())
            row.add_row(what, value)
            console.print(row)
        else:
            say(console, what.ljust(margin) + value)
    console.print()
    console.print(timeline_text(answer, console.width, baseline), soft_wrap=True)
    if answer.logprobs is not None:
        pairs = zip(answer.tokens, answer.logprobs, strict=True)
        say(console, "\n" + "  ".join(f"{target.decode([token])!r} {value:.3f}" for token, value in pairs))
    show_notes(console, answer.notes)


def show_notes(console: Console, notes: Sequence[str]) -> None:
    """Show the notes of an answer: a damaged clip, a lost drafter, drafting that did not pay."""
    for note in notes:
        say(console, f"Note: {with_flags(note)}", "yellow")


def legend(answer: Answer) -> Text:
    """The legend of a final text's colours, for the origins that occur in it."""
    shown = [origin for origin, count in origins(answer) if count]
    return Text("   ").join(Text(f"■ {name}: {ORIGINS[name]}", STYLES[Origin(name)]) for name in shown)


def cells(spans: Sequence[Span], start: float, step: float, width: int) -> list[Kind | None]:
    """Kind of span that fills most of each cell; `None` where the lane is idle.

    Args:
        spans: spans of one lane.
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
    """Draw a lane's cells as one line; a run of cells carries its label if it is long enough."""
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
    """Draw the axis of `width` cells for a time span; the last label may extend beyond it."""
    marks = ticks(seconds, max(1, width // 10))
    line = ""
    for mark, label in zip(marks, labels(marks, seconds), strict=True):
        line = line.ljust(round(mark / seconds * width)) + label
    return line


def timeline_text(answer: Answer, width: int, baseline: Baseline | None = None) -> Text:
    """Draw axis, lanes and legend, `width` characters wide; empty if nothing was recorded.

    With a baseline there is a lane for the target alone, on the same axis.
    """
    rows = [(name, plain(answer), name, answer.timeline) for name in lanes_of(answer.timeline)]
    if baseline is not None:
        rows.append((ALONE, plain(baseline.answer), "target", baseline.answer.timeline))
    seconds = max((end_of(timeline) for *_, timeline in rows), default=0.0)
    if not seconds:
        return Text()
    margin = max(len(name) for name, *_ in rows) + 2
    room = max(10, width - margin - 8)  # the last mark's label extends beyond it
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
    """Put items side by side, with three blanks between, in as many lines as a terminal of that width needs."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + 3 + item.cell_len <= width:
            lines[-1].append("   ").append_text(item)
        else:
            lines.append(Text(" " * margin) + item)
    return lines


def record(answer: Answer, words: Sequence[str] | None = None) -> dict[str, object]:
    """Report on an answer as plain values; times in milliseconds.

    Args:
        answer: the answer.
        words: text of every token, shown with its log-probability.
    """
    found: dict[str, object] = {
        "text": answer.text,
        "finish": answer.finish.value,
        "tokens": list(answer.tokens),
        "pieces": [
            {"origin": piece.origin.value, "text": piece.text, "tokens": list(piece.tokens)} for piece in answer.pieces
        ],
        "notes": list(answer.notes),
        "stats": answer.stats.to_json(),
        "timeline": spans(answer.timeline),
    }
    if answer.logprobs is not None:
        found["logprobs"] = [round(value, 4) for value in answer.logprobs]
        found["words"] = list(words or ())
    return found


def spans(timeline: Timeline) -> list[dict[str, object]]:
    """The spans in the order of their starts, in milliseconds since the first."""
    zero = timeline.start
    return [
        {
            "lane": span.lane,
            "name": span.name,
            "start_ms": round((span.start - zero) * 1e3, 3),
            "end_ms": round((span.end - zero) * 1e3, 3),
            "tokens": span.tokens,
        }
        for span in sorted(timeline.spans, key=lambda span: (span.start, span.end))
    ]
