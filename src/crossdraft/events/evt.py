"""Prophesee RAW: EVT2, EVT2.1 and EVT3, from files and from streams.

No time is invented. A wrap of the clock is undone, and noted if words were missing there; events that come up to
`DISORDER_US` late are put in order, and noted; a larger step back is refused. 10 ms are more than a late TIME_HIGH sets
EVT3's clock back (8.2 ms), and less than any window that a model reads. A camera that was started anew begins at 0: in
the last quarter of EVT3's 16.8 s (in the last 67 s of the others' 4.8 h) that looks like a wrap, and is noted as one.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.evt_words import Evt2Words, Evt3Words, Found
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import LAST_US, Events, Newest, Sensor, Window

DISORDER_US = 10_000  # events that come more than this behind a later one are refused
FALLBACK_SENSOR = (1280, 720)  # where neither the header nor the caller names it
CAMERAS = {"gen3": (640, 480), "genx320": (320, 320)}  # sensors by a part of `plugin_name`, for headers without a size
HEADER_BYTES = 1 << 16
AT_ONCE = 1 << 18  # bytes of words that are decoded at once, so that the arrays stay in the processor's cache
BLOCK_BYTES = 1 << 20  # bytes of a file that are read, or passed over, at once
MOST_HELD = 1 << 22  # events that are held back, at 400 million a second
VERSIONS = {"2": "2", "2.0": "2", "21": "2.1", "2.1": "2.1", "3": "3", "3.0": "3"}
_LINES = re.compile(rb"(?:% [^\n]*\n)*?% *end *\r?\n|(?:% [^\n]*\n)*")
_LINE = re.compile(r"^% *(\S+) +(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EvtHeader:
    """The lines in front of a RAW stream's words, `size` bytes.

    `version` is `2`, `2.1` or `3`; `sensor` is (width, height) or not named; `start_us` is added to every time; if
    `legacy`, the halves of EVT2.1's words are swapped, as the IMX636 sends them (`None` = not said).
    """

    version: str
    sensor: Sensor | None = None
    size: int = 0
    start_us: int = 0
    legacy: bool | None = None


def evt_header(data: bytes, source: object) -> EvtHeader:
    """Read the header with which a RAW file or stream begins.

    Raises:
        CrossdraftError: the data end within the header, or it names no encoding, or one that is not read.
    """
    found = _LINES.match(data)
    size = 0 if found is None else found.end()
    if data[size:].startswith(b"% ") and not data[:size].rstrip().endswith(b" end"):
        raise CrossdraftError(f"{source} ends within its header; it was cut off, so copy it again.")
    said = {name.lower(): value for name, value in _LINE.findall(data[:size].decode("latin1"))}
    encoding, *options = said.get("format", f"EVT{said['evt']}" if "evt" in said else "").split(";")
    said |= dict(option.lower().split("=", 1) for option in options if "=" in option)
    version = VERSIONS.get(encoding.upper().removeprefix("EVT"))
    if version is None:
        why = "does not begin with a header that says its encoding (% evt 3.0 or % format EVT3)"
        why = f"is {encoding:.40}, which is not read" if encoding else why
        raise CrossdraftError(f"{source} {why}; copy the whole file again, or export it as EVT2, EVT2.1 or EVT3.")
    sides = re.fullmatch(r"(\d{1,5})x(\d{1,5})", said.get("geometry", f"{said.get('width')}x{said.get('height')}"))
    start = re.fullmatch(r"-?\d{1,18}", said.get("t0", ""))
    known = (size for part, size in CAMERAS.items() if part in said.get("plugin_name", ""))
    sensor = (int(sides[1]), int(sides[2])) if sides else next(known, None)
    order = said["endianness"] == "legacy" if "endianness" in said else None
    return EvtHeader(version, sensor, size, int(start[0]) if start else 0, order)


class EvtDecoder:
    """Decodes a RAW stream as it comes, in pieces of any size.

    The newest `DISORDER_US` of events are held back, as others may still come in front of them.

    Args:
        header: the stream's header.
        sensor: width and height, if the header's are not right.
        source: name of the stream in messages.

    Attributes:
        count: number of events so far, those that were passed over included.
        rest: beginning of a word whose end is still to come.
        stepped_back: true if the next call's error is an event too late to be put in order.
    """

    def __init__(self, header: EvtHeader, sensor: Sensor | None = None, source: object = "the stream") -> None:
        self.header, self._source, named = header, source, sensor or header.sensor
        self.width, self.height = named or FALLBACK_SENSOR
        pairs = header.version == "2.1"
        self.words = Evt3Words() if header.version == "3" else Evt2Words(pairs=pairs, legacy=header.legacy)
        self.count, self.rest, self.stepped_back = 0, b"", False
        self._held, self._unsorted = list[Found](), False
        self._newest = self._given = -LAST_US  # latest time of all events, and of those that were given away
        self._late, self._late_us, self._assumed = 0, 0, named is None
        self._fault: str | None = None

    def decode(self, data: bytes) -> Events:
        """Decode the next bytes; return the events whose order is final.

        Raises:
            CrossdraftError: the last call met an event outside the sensor, or one too late to be put in order, and
                returned what came before it.
        """
        if self._fault is not None:
            raise CrossdraftError(self._fault)
        data = self.rest + data if self.rest else data
        end = len(data) - len(data) % self.words.size
        view, self.rest = memoryview(data), bytes(data[end:])
        for at in range(0, end, AT_ONCE):
            self._held.append(self._checked(*self.words.decode(view[at : min(at + AT_ONCE, end)])))
            if self._fault is not None:
                return self._in_order(LAST_US)
        return self._in_order(self._newest - DISORDER_US)

    def flush(self) -> Events:
        """Return the events that are held back, with all notes so far; errors as `decode`."""
        if self._fault is not None:
            raise CrossdraftError(self._fault)
        return self._in_order(LAST_US).noting(self.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Repairs, assumptions and omissions so far, a sentence each."""
        words, clock = self.words, self.words.clock
        said = {
            f"The header names no sensor; {self.width}x{self.height} pixels were assumed.": self._assumed,
            f"Events that came late, up to {self._late_us:,} µs, and were put in order: {self._late:,}.": self._late,
            f"Wraps of the clock without its last or first word: {clock.wraps:,}; the longest gap was taken for "
            f"{clock.gap_us / 1e6:.3f} s, and not for a restart of the camera.": clock.wraps,
            f"Events of unknown time, row or column, left out: {words.dropped:,}.": words.dropped,
            f"Words that EVT{self.header.version} does not define, ignored: {words.undefined:,}.": words.undefined,
        }
        return tuple(sentence for sentence, count in said.items() if count)

    def _checked(self, t: Any, x: Any, y: Any, p: Any) -> Found:
        """Events in front of the first that is outside the sensor or too late, which is the next call's error."""
        t += self.header.start_us
        end, size = len(t), f"{self.width}x{self.height}"
        if x.max(initial=0) >= self.width or y.max(initial=0) >= self.height:
            end = int(((x >= self.width) | (y >= self.height)).argmax())
            self._fault = (
                f"{self._source}: event {self.count + end:,} is at x={x[end]}, y={y[end]}, outside the {size} sensor; "
                "if it has another size, say so (sensor=…), else the recording is damaged, so copy it again."
            )
        if end and (t[0] < self._newest or (t[1:end] < t[: end - 1]).any()):
            latest = np.maximum.accumulate(np.append(self._newest, t[: end - 1]))
            behind = latest - t[:end]
            if len(bad := np.flatnonzero((behind > DISORDER_US) | (t[:end] < self._given))):
                end, self.stepped_back = int(bad[0]), True
                self._fault = (
                    f"{self._source}: events out of order: event {self.count + end:,} is {behind[end]:,} µs earlier "
                    f"than one before it, and only {DISORDER_US:,} µs are put in order; the camera was started anew, "
                    f"or words of its clock were lost, so read the part before it, up to {latest[end]:,} µs (end_us=…)."
                )
            self._unsorted, self._late = True, self._late + int(np.count_nonzero(behind[:end] > 0))
            self._late_us = max(self._late_us, int(behind[:end].max(initial=0)))
        self._newest = max(self._newest, int(t[:end].max(initial=-LAST_US)))
        self.count += end
        return t[:end], x[:end].astype(np.uint16), y[:end], p[:end]

    def _in_order(self, until_us: int) -> Events:
        """Put the held events in order; return those before a time, and hold the others back."""
        if not self._held:
            return Events.empty(self.width, self.height)
        columns = [np.concatenate(parts) for parts in zip(*self._held, strict=True)]
        if self._unsorted:
            order = np.argsort(columns[0], kind="stable")
            columns, self._unsorted = [column[order] for column in columns], False
        end = max(int(np.searchsorted(columns[0], until_us)), len(columns[0]) - MOST_HELD)
        self._given = int(columns[0][end - 1]) if end else self._given
        later: Any = tuple(column[end:].copy() for column in columns)
        self._held = [later] if len(later[0]) else []
        t, x, y, p = (column[:end] for column in columns)
        return Events(x, y, t, p, self.width, self.height)


def read_evt(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """Yield a RAW file of EVT2, EVT2.1 or EVT3, a million bytes at a time.

    The words in front of a span, or of its newest events, are passed over (`skip` in `evt_words`), which is exact.
    Faults there are not seen, but for a clock that steps back: then all events are decoded.
    """
    with path.open("rb") as file:
        decoder = EvtDecoder(evt_header(file.read(HEADER_BYTES), path), sensor, path)
        _seek(file, decoder, window)
        while data := file.read(BLOCK_BYTES):
            events = decoder.decode(data)
            limits.check_scanned(path, decoder.count)
            yield window.clip(events)
            if window.ends_before(events.t):
                yield Events.empty(decoder.width, decoder.height).noting(decoder.notes)
                return
        cut = ["The recording ends within a word: it was cut off, and was read up to there."] if decoder.rest else []
        yield window.clip(decoder.flush()).noting(cut)


class _Mark(NamedTuple):
    offset: int  # place in the file
    us: int  # the clock there
    events: int  # number of events in front of it
    words: Evt2Words | Evt3Words  # the decoder's state


def _seek(file: BinaryIO, decoder: EvtDecoder, window: Window) -> None:
    """Go to a word in front of which nothing is that the window wants."""
    words, count, marks = decoder.words, 0, list[_Mark]()
    file.seek(decoder.header.size)
    beyond = window.start_us if window.newest is None else window.end_us
    while window.start_us is not None or window.newest not in (None, Newest()):
        us = -LAST_US if words.clock.us is None else words.clock.us + decoder.header.start_us
        marks.append(_Mark(file.tell(), us, count, copy.deepcopy(words)))
        data = memoryview(file.read(BLOCK_BYTES))
        whole = len(data) - len(data) % words.size
        if not whole or (beyond is not None and us - DISORDER_US > beyond):
            offset, _, decoder.count, decoder.words = marks[0] if words.clock.stepped else _first_mark(marks, window)
            file.seek(offset)
            return
        count += words.skip(data[:whole])


def _first_mark(marks: list[_Mark], window: Window) -> _Mark:
    """Find the last mark that `_seek` may go to, where the clock never steps back."""

    def before(us: int) -> _Mark:  # the last mark in front of which all events are earlier, or the first mark
        return next((mark for mark in reversed(marks) if mark.us + DISORDER_US <= us), marks[0])

    first = marks[0] if window.start_us is None else before(window.start_us)
    newest, end = window.newest, marks[-1] if window.end_us is None else before(window.end_us)
    blocks = [a for a, b in pairwise(marks) if b.offset <= end.offset and b.events > a.events]
    if newest is None or not blocks:
        return first
    oldest_us = -LAST_US if newest.us is None else blocks[-1].us - newest.us - DISORDER_US
    most = newest.most or end.events + 1
    for mark in reversed(blocks):
        held = end.events - mark.events
        if held >= most or (held >= newest.least and mark.us <= oldest_us):
            return max(first, before(mark.us))
    return first
