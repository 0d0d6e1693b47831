"""Figures of a recording: its span, its rate over time, and the longest silences."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events, Sensor

STEPS = 64  # largest number of steps of a rate over time
SILENCES = 3


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a recording.

    Attributes:
        width, height: size of the sensor.
        events: number of events.
        start_us: absolute time of the first event.
        duration_us: time from the first to the last event.
        rate_mev_s: million events a second; 0 if there is no duration.
        rate_hz_px: events a second per pixel.
        on_fraction: share of ON events.
        step_us, steps: number of events in each step of that many µs, from the first event on; at most `STEPS`.
        silences: the longest times without an event, longest first: µs from the first event to its begin, and its µs.
        notes: what the reader repaired or left out.
    """

    width: int
    height: int
    events: int
    start_us: int
    duration_us: int
    rate_mev_s: float
    rate_hz_px: float
    on_fraction: float
    step_us: int
    steps: tuple[int, ...]
    silences: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()


def summarise(chunks: Iterable[Events]) -> Summary:
    """Summarise consecutive chunks of a recording; memory is that of one chunk."""
    count = on = start = end = 0
    size: Sensor = (0, 0)
    step_us, steps, silences = 1, np.zeros(STEPS, np.int64), list[tuple[int, int]]()
    notes: dict[str, None] = {}
    for chunk in chunks:
        notes |= dict.fromkeys(chunk.notes)
        size = chunk.width, chunk.height
        if not len(chunk):
            continue
        start, end = (start, end) if count else (chunk.t0, 0)
        since = chunk.t - start
        while since[-1] >= STEPS * step_us:  # twice the length, so that a step of any recording is one to 2**n µs
            steps, step_us = np.pad(steps.reshape(-1, 2).sum(1), (0, STEPS // 2)), 2 * step_us
        steps += np.bincount(since // step_us, minlength=STEPS)
        gaps = np.diff(since, prepend=end)
        longest = np.argpartition(gaps, -min(SILENCES, len(gaps)))[-SILENCES:]
        silences += [(int(since[one] - gaps[one]), int(gaps[one])) for one in longest if gaps[one]]
        silences = sorted(silences, key=itemgetter(1), reverse=True)[:SILENCES]
        end = int(since[-1])
        count += len(chunk)
        on += int(chunk.p.sum())
    if not min(size):
        raise CrossdraftError("There are no events to summarise.")
    mean = count / end if end else 0.0  # per µs, which is Mev/s
    rates = mean, mean * 1e6 / (size[0] * size[1]), on / max(count, 1)
    shown = tuple(steps[: end // step_us + 1].tolist()) if count else ()
    return Summary(*size, count, start, end, *rates, step_us, shown, tuple(silences), tuple(notes))
