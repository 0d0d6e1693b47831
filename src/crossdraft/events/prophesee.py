"""Prophesee DAT (CD events), with numpy alone: eight bytes an event, uint32 µs and packed x, y, p."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import Events, Sensor, Window
from crossdraft.events.words import EVENT_BYTES, WrappingClock, word_pairs

CD_TYPES = (0x00, 0x0C)  # Event2D of old files, EventCD of new ones: one layout
MAX_LINE, MAX_DIGITS = 4096, 18  # of a header: longer ones are damage, and 18 digits fit in int64
KNOWN_SENSORS = ((304, 240), (640, 480), (1280, 720))  # the header's size lines are newer than the format


def read_dat(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """The events of a `.dat`; the 71.6 min wrap of its clock is undone, a `T0` header line is added."""
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
    """Reads the lines that begin with %; the numbers that we need by name."""
    numbers: dict[str, int] = {}
    while file.peek(1)[:1] == b"%":  # type: ignore[attr-defined]
        line = file.readline(MAX_LINE).decode("latin1")
        if found := re.fullmatch(r"%\s*(T0|Width|Height)\s+(\d+)\s*", line, re.IGNORECASE):
            name, digits = found[1].capitalize(), found[2]
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
    """x, y and p from one word each."""
    return packed & 0x3FFF, packed >> 14 & 0x3FFF, packed >> 28 & 1


def _sensor(header: dict[str, int], file: BinaryIO, path: Path, limits: EventLimits) -> Sensor:
    """By the header, or else the smallest camera that all events of the file fit on: it is then read twice."""
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
