"""Prophesee DAT (CD events), with numpy alone: eight bytes an event, uint32 µs and packed x, y, p."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events, Sensor, Window, unwrap_time

EVENT_BYTES = 8
CD_TYPES = (0x00, 0x0C)  # Event2D of old files, EventCD of new ones: one layout
KNOWN_SENSORS = ((304, 240), (640, 480), (1280, 720))  # the header's size lines are newer than the format


def read_dat(path: Path, sensor: Sensor | None, window: Window) -> Iterator[Events]:
    """The events of a `.dat`; the 71.6 min wrap of its clock is undone, a `T0` header line is added."""
    with path.open("rb") as file:
        header = _header(file)
        kind = file.read(2)
        body = file.read()
    if len(kind) < 2:
        raise CrossdraftError(f"{path} ends within its header; it was cut off, so copy it again.")
    if kind[0] not in CD_TYPES or kind[1] != EVENT_BYTES:
        raise CrossdraftError(f"{path} holds DAT events of type {kind[0]:#04x}; only CD events can be read.")
    if len(body) % EVENT_BYTES:
        raise CrossdraftError(f"{path} ends within an event; it was cut off, so copy it again.")
    words = np.frombuffer(body, dtype="<u4").reshape(-1, 2)
    t, packed = words[:, 0], words[:, 1]
    x, y, p = packed & 0x3FFF, packed >> 14 & 0x3FFF, packed >> 28 & 1
    width, height = sensor or _sensor(header, x, y)
    absolute = unwrap_time(t, 32, path) + header.get("T0", 0)
    yield window.clip(Events.checked(x, y, absolute, p, width, height, source=path))


def _header(file: BinaryIO) -> dict[str, int]:
    """Reads the lines that begin with %; those of the form "% Name number" by name."""
    numbers: dict[str, int] = {}
    while file.peek(1)[:1] == b"%":  # type: ignore[attr-defined]
        line = file.readline().decode("latin1")
        if found := re.fullmatch(r"%\s*(\w+)\s+(\d+)\s*", line):
            numbers[found[1].capitalize()] = int(found[2])
    return numbers


def _sensor(header: dict[str, int], x: np.ndarray, y: np.ndarray) -> Sensor:
    if "Width" in header and "Height" in header:
        return header["Width"], header["Height"]
    right, bottom = (int(column.max()) if len(column) else 0 for column in (x, y))
    fitting = [size for size in KNOWN_SENSORS if right < size[0] and bottom < size[1]]
    return fitting[0] if fitting else (right + 1, bottom + 1)
