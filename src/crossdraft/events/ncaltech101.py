"""N-Caltech101's and N-MNIST's `.bin` (Orchard et al. 2015): five bytes an event, big-endian.

    x (8 bits), y (8), polarity (1), time in µs (23)

The camera's clock has 13 bits. Each time it overflows there is an event in row 240, which no pixel has, and all later
times lack 8192 µs: these events are removed, and the times corrected, as in the authors' own reader. The 23 bits of a
file without such events wrap after 8.4 s; that is undone where the clock leaves its last second and lands in its first.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import Events, Sensor, Window, unwrap_time

EVENT_BYTES, OVERFLOW_ROW, OVERFLOW_US = 5, 240, 1 << 13
WRAP_EDGE_US = 1_000_000
NCALTECH101_SENSOR = (240, 180)  # size of the images on the screen


def read_ncaltech101(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """Yield the events of a `.bin`, which is read whole: it lasts 0.3 s. 240x180 unless `sensor` says otherwise."""
    size = path.stat().st_size
    limits.check_whole(path, size)
    if size % EVENT_BYTES:
        raise CrossdraftError(f"{path} ends within an event; it was cut off, so copy it again.")
    limits.check_held(path, size // EVENT_BYTES)
    raw = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, EVENT_BYTES).astype(np.int64)
    x, y, high = raw[:, 0], raw[:, 1], raw[:, 2]
    t = (high & 0x7F) << 16 | raw[:, 3] << 8 | raw[:, 4]
    overflow = y == OVERFLOW_ROW
    t += OVERFLOW_US * np.cumsum(overflow)
    kept, notes = ~overflow, list[str]()
    if not overflow.any() and (t[1:] < t[:-1]).any():
        t, notes = unwrap_time(t, 23, path, edge_us=WRAP_EDGE_US), ["Its clock of 23 bits wrapped, which is undone."]
    width, height = sensor or NCALTECH101_SENSOR
    events = Events.checked(x[kept], y[kept], t[kept], high[kept] >> 7, width, height, source=path)
    yield window.clip(events).noting(notes)
