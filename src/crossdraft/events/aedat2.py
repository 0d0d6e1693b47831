"""AEDAT 2 of DAVIS cameras, with numpy alone: big-endian pairs of uint32 address and uint32 µs.

jAER and v2e store x and y mirrored against the image (their origin is the lower right corner); both are turned
back here. Addresses of frames, inertial data and external triggers are skipped.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import Events, Sensor, Window
from crossdraft.events.words import WrappingClock, word_pairs

DAVIS346, DAVIS240 = (346, 260), (240, 180)
_FRAME_OR_IMU, _EXTERNAL = 1 << 31, 1 << 10
_HEADER_BYTES = 1 << 22  # jAER may write all its preferences there
_END = re.compile(rb"(?:#[^\n]*\n)*?#\s*End Of ASCII Header[^\n]*\n", re.IGNORECASE)
_LINES = re.compile(rb"(?:#[\t\x20-\x7e]*(?:\r?\n|\Z))*")


def read_aedat2(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """The events of an `.aedat` of version 2 from a DAVIS346, or a DAVIS240 if its header or `sensor` says so."""
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
    """Where the events begin, and the text before: the leading lines of text that begin with #.

    An event's first byte may be a # as well, so a line that says where the header ends is believed, and a line without
    such an end behind it counts only if it is text.
    """
    end = _END.match(content)
    if end is not None:
        return end.end(), content[: end.end()].decode("latin1")
    lines = _LINES.match(content)
    start = lines.end() if lines is not None else 0
    return start, content[:start].decode("latin1")
