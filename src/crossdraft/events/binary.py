"""Formats of eight bytes per event, read with numpy alone: Prophesee DAT (CD events) and jAER's AEDAT 2.

Both are pairs of 32-bit words, one of them a clock in µs that wraps after 71.6 min: DAT little-endian time and packed
x, y, p, AEDAT 2 big-endian address and time. jAER and v2e store x and y mirrored against the image (their origin is the
lower right corner); both are mirrored back here. Addresses of frames, inertial data and external triggers are skipped.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import WRAP_EDGE_US, Events, Sensor, Window, unwrap_time

EVENT_BYTES = 8
CHUNK_EVENTS = 1_000_000


def word_pairs(file: BinaryIO, order: str, path: Path, limits: EventLimits) -> Iterator[NDArray[np.uint32]]:
    """Yield the words [N, 2] from here to the end of the file, about a million events at a time; at least one array.

    Args:
        order: byte order of a word, "<" or ">".

    Raises:
        CrossdraftError: the file ends within an event, or is longer than `limits.scanned`; raised before the limit.
    """
    left = os.fstat(file.fileno()).st_size - file.tell()
    if left % EVENT_BYTES:
        raise CrossdraftError(f"{path} ends within an event; it was cut off, so copy it again.")
    for done in range(0, max(left, 1), CHUNK_EVENTS * EVENT_BYTES):
        size = min(left - done, CHUNK_EVENTS * EVENT_BYTES)
        limits.check_scanned(path, (done + size) // EVENT_BYTES)
        yield np.frombuffer(file.read(size), f"{order}u4").astype(np.uint32, copy=False).reshape(-1, 2)


class WrappingClock:
    """Undoes the wraps of a 32-bit clock (every 71.6 min) over consecutive chunks, from the last time of each.

    A clock that steps back farther than a minute from its ends (`WRAP_EDGE_US`) is no wrap: the camera was restarted.
    """

    def __init__(self, source: object) -> None:
        self._source = source
        self._last_us = self._rows = 0

    def __call__(self, t: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Unwrapped times of the next chunk; errors as `unwrap_time`."""
        if not len(t):
            return t.astype(np.int64)
        # The last time of the previous chunk comes first, as a wrap may lie between the two.
        wraps, raw = divmod(self._last_us, 1 << 32)
        joined = np.concatenate([np.array([raw], np.uint32), t]) if self._last_us else t
        first, self._rows = self._rows - (len(joined) - len(t)), self._rows + len(t)
        times = unwrap_time(joined, 32, self._source, first, WRAP_EDGE_US) + (wraps << 32)
        self._last_us = int(times[-1])
        return times[len(joined) - len(t) :]


CD_TYPES = (0x00, 0x0C)  # Event2D of old files, EventCD of new ones: one layout
MAX_LINE, MAX_DIGITS = 4096, 18  # limits of a header: longer ones are damage, and 18 digits fit in int64
KNOWN_SENSORS = ((304, 240), (640, 480), (1280, 720))  # older files have no size lines in the header


def read_dat(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """Yield the events of a `.dat`; the 71.6 min wrap of its clock is undone, and a `T0` header line is added."""
    with path.open("rb") as file:
        header = _dat_header(file, path)
        _check_kind(file.read(2), path)
        if sensor is None:
            sensor = _sensor(header, file, path, limits)
        clock = WrappingClock(path)
        for words in word_pairs(file, "<", path, limits):
            x, y, p = _unpack(words[:, 1])
            t = clock(words[:, 0]) + header.get("T0", 0)
            yield window.clip(Events.checked(x, y, t, p, *sensor, source=path))
            if window.ends_before(t):
                return


def _dat_header(file: BinaryIO, path: Path) -> dict[str, int]:
    """Read the lines that begin with %; return the numbers that are needed, by name."""
    numbers: dict[str, int] = {}
    while file.peek(1)[:1] == b"%":  # type: ignore[attr-defined]
        line = file.readline(MAX_LINE).decode("latin1")
        if found := re.fullmatch(r"%\s*(T0|Width|Height)\s+(\S.*?)\s*", line, re.IGNORECASE | re.DOTALL):
            name, digits = found[1].capitalize(), found[2]
            if not re.fullmatch("[0-9]+", digits):
                raise CrossdraftError(
                    f"{path}: {name} in its header is {digits!r:.40}; it must be a whole number without a sign, so "
                    "correct it, or copy the file again."
                )
            if len(digits) > MAX_DIGITS:
                raise CrossdraftError(
                    f"{path}: {name} in its header has {len(digits)} digits, which no recording needs; "
                    "the file is damaged, so copy it again."
                )
            numbers[name] = int(digits)
    return numbers


def _check_kind(kind: bytes, path: Path) -> None:
    if len(kind) < 2:
        raise CrossdraftError(f"{path} ends within its header; it was cut off, so copy it again.")
    if kind[0] not in CD_TYPES or kind[1] != EVENT_BYTES:
        raise CrossdraftError(f"{path} holds DAT events of type {kind[0]:#04x}; only CD events can be read.")


def _unpack(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split words into x, y and p."""
    return packed & 0x3FFF, packed >> 14 & 0x3FFF, packed >> 28 & 1


def _sensor(header: dict[str, int], file: BinaryIO, path: Path, limits: EventLimits) -> Sensor:
    """Sensor by the header, or the smallest camera that fits all events of the file, which is then read twice."""
    if "Width" in header and "Height" in header:
        return header["Width"], header["Height"]
    right = bottom = 0
    begin = file.tell()
    for words in word_pairs(file, "<", path, limits):
        x, y, _ = _unpack(words[:, 1])
        right, bottom = max(right, int(x.max(initial=0))), max(bottom, int(y.max(initial=0)))
    file.seek(begin)
    fitting = [size for size in KNOWN_SENSORS if right < size[0] and bottom < size[1]]
    return fitting[0] if fitting else (right + 1, bottom + 1)


DAVIS346, DAVIS240 = (346, 260), (240, 180)
_FRAME_OR_IMU, _EXTERNAL = 1 << 31, 1 << 10
_HEADER_BYTES = 1 << 22  # jAER may write all its preferences there
_END = re.compile(rb"(?:#[^\n]*\n)*?#\s*End Of ASCII Header[^\n]*\n", re.IGNORECASE)
_LINES = re.compile(rb"(?:#[\t\x20-\x7e]*(?:\r?\n|\Z))*")


def read_aedat2(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """Yield the events of an `.aedat` of version 2 from a DAVIS346, or a DAVIS240 if its header or `sensor` says so."""
    with path.open("rb") as file:
        start, header = _aedat_header(file.read(_HEADER_BYTES))
        if not header.startswith("#!AER-DAT2"):
            raise CrossdraftError(f"{path} is not AEDAT 2; convert it to AEDAT 4 with iniVation's DV software.")
        file.seek(start)
        clock = WrappingClock(path)
        width, height = sensor or (DAVIS240 if "davis240" in header.lower() else DAVIS346)
        for words in word_pairs(file, ">", path, limits):
            of_pixels = words[words[:, 0] & (_FRAME_OR_IMU | _EXTERNAL) == 0]
            address, t = of_pixels[:, 0], clock(of_pixels[:, 1])
            x = width - 1 - (address >> 12 & 0x3FF).astype(np.int32)
            y = height - 1 - (address >> 22 & 0x1FF).astype(np.int32)
            yield window.clip(Events.checked(x, y, t, address >> 11 & 1, width, height, source=path))
            if window.ends_before(t):
                return


def _aedat_header(content: bytes) -> tuple[int, str]:
    """Find where the events begin; return it with the text before: the leading text lines that begin with #.

    An event's first byte may be a # as well, so a line that states the header's end is trusted, and a line without such
    an end after it counts only if it is text.
    """
    end = _END.match(content)
    if end is not None:
        return end.end(), content[: end.end()].decode("latin1")
    lines = _LINES.match(content)
    start = lines.end() if lines is not None else 0
    return start, content[:start].decode("latin1")
