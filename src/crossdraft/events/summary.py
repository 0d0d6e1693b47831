"""What a recording is, in a few numbers, and spans of it in seconds since its first event."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.read import first_time
from crossdraft.events.stream import Events, Sensor, Window

MAX_SECONDS = 1e9  # 31 years; in µs, and added to any time that a recording may hold, it fits in int64


@dataclass(frozen=True, slots=True)
class Summary:
    """A recording in numbers.

    Attributes:
        width, height: the sensor.
        events: how many.
        start_us: absolute time of the first event.
        duration_us: from the first to the last event.
        rate_mev_s: million events a second; 0 where there is no duration.
        rate_hz_px: events a second per pixel.
        on_fraction: share of ON events.
    """

    width: int
    height: int
    events: int
    start_us: int
    duration_us: int
    rate_mev_s: float
    rate_hz_px: float
    on_fraction: float


def summarise(chunks: Iterable[Events]) -> Summary:
    """Read through consecutive chunks of a recording; memory stays that of one chunk."""
    count = on = start = end = 0
    size: Sensor = (0, 0)
    for chunk in chunks:
        size = chunk.width, chunk.height
        if len(chunk):
            start = start if count else chunk.t0
            end = chunk.t0 + chunk.duration_us
        count += len(chunk)
        on += int(chunk.p.sum())
    if not min(size):
        raise CrossdraftError("There are no events to summarise.")
    duration = end - start
    rate = count / duration if duration else 0.0  # per µs, which is Mev/s
    return Summary(*size, count, start, duration, rate, rate * 1e6 / (size[0] * size[1]), on / max(count, 1))


def window_in_seconds(
    path: str | os.PathLike[str],
    kind: str | None,
    sensor: Sensor | None,
    start_s: float | None,
    end_s: float | None,
    limits: EventLimits = DEFAULT_LIMITS,
) -> Window:
    """The absolute window of a span given in seconds since the recording's first event.

    Raises:
        CrossdraftError: a span without sense, what reading raises, or a recording without events.
    """
    if start_s is None and end_s is None:
        return Window()
    for name, second in (("start", start_s), ("end", end_s)):
        if second is not None and not 0 <= second <= MAX_SECONDS:  # NaN is in no order with anything
            raise CrossdraftError(
                f"The {name} of the span is {second:g} s; give seconds since the first event, 0 to {MAX_SECONDS:g}."
            )
    first = first_time(path, format=kind, sensor=sensor, limits=limits)
    if first is None:
        raise CrossdraftError(f"{path} holds no events.")
    start, end = (None if s is None else first + round(s * 1e6) for s in (start_s, end_s))
    return Window(start, end)
