"""Recordings whose rows can be read at random (HDF5, mapped arrays): finds a span without reading the rest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from crossdraft.events.clock import time_unit, zero_of
from crossdraft.events.limits import EventLimits
from crossdraft.events.stream import Columns, Events, Sensor, Window, check_numbers, whole_times

if TYPE_CHECKING:
    import h5py

FIRST_EVENTS = 1 << 17  # events of the first chunk, for callers that only read a recording's beginning
CHUNK_EVENTS = 1 << 20  # events of later chunks: 14 MB in memory
_PROBE_EVENTS = 65_536  # a binary search reads the last events at once
Times = NDArray[np.integer] | NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Recording:
    """Events of one camera, read on demand.

    Attributes:
        count: number of events.
        sensor: (width, height).
        times: returns the times of rows [i, j) as stored, not yet checked.
        columns: returns x, y, t, p of rows [i, j) as stored, not yet checked.
        ms_to_idx: entry m is the first event at or after m ms on the file's own clock, or None.
        clock_us: absolute time of this clock's zero, added to the times.
        unit: usual unit of the format's times.
        notes: what the reader repaired.
    """

    count: int
    sensor: Sensor
    times: Callable[[int, int], Times]
    columns: Callable[[int, int], Columns]
    ms_to_idx: "h5py.Dataset | Sequence[int] | None" = None
    clock_us: int = 0
    unit: str = "us"
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, stored: "Sequence[Any]", sensor: Sensor, index: "h5py.Dataset | None" = None, zero_us: int = 0) -> Self:
        """Make a recording of the columns x, y, t, p, which are arrays or data sets."""
        t = stored[2]
        return cls(len(t), sensor, lambda i, j: t[i:j], lambda i, j: tuple(one[i:j] for one in stored), index, zero_us)


def chunks_of(
    recording: Recording, window: Window, path: Path, limits: EventLimits, unit: str | None = None
) -> Iterator[Events]:
    """Yield the events inside the window, CHUNK_EVENTS at a time; one empty chunk if there is none.

    Without a `unit`, the times are in the format's usual one, after a check.
    """
    stored, sensor, count = recording.times, recording.sensor, recording.count
    usual, zero_us, notes = recording.unit, recording.clock_us, recording.notes
    check_numbers({"t": stored(0, 0).dtype}, path)
    if unit is None:
        usual, more = time_unit(stored, count, sensor, usual, path)
        notes += more
    if zero_us and count:
        first_us, index = int(whole_times(stored(0, 1), path, unit or usual)[0]), recording.ms_to_idx
        zero_us, more = zero_of(first_us, zero_us, 0 if index is None else 1000 * len(index))
        notes += more

    def in_us(times: Times) -> NDArray[np.int64]:
        whole = whole_times(times, path, unit or usual)
        return whole + zero_us if zero_us else whole  # without a copy

    # A search among times that are NaN would end anywhere, without an error.
    recording = replace(recording, times=lambda i, j: in_us(stored(i, j)))
    first = 0 if window.start_us is None else first_at(recording, window.start_us)
    last = recording.count if window.end_us is None else max(first, first_at(recording, window.end_us))
    first = _newest_from(recording, first, last, window)
    limits.check_scanned(path, last - first)
    step = FIRST_EVENTS
    if window.newest is not None:  # the caller needs them at once
        limits.check_held(path, last - first)
        step = last - first
    while True:
        stop = min(first + step, last)
        x, y, t, p = recording.columns(first, stop)
        yield Events.checked(x, y, in_us(np.asarray(t)), p, *sensor, source=path).noting(notes)
        first, step = stop, CHUNK_EVENTS
        if first >= last:
            return


def _newest_from(recording: Recording, first: int, last: int, window: Window) -> int:
    """Row at which the newest events of rows [first, last) begin, by `window.newest`."""
    newest = window.newest
    if newest is None or last <= first:
        return first
    begin = first
    if newest.us is not None:
        begin = first_at(recording, int(recording.times(last - 1, last)[0]) + 1 - newest.us, first, last)
    begin = min(begin, max(first, last - newest.least))
    return begin if newest.most is None else max(begin, last - newest.most)


def first_at(recording: Recording, time_us: int, low: int = 0, high: int | None = None) -> int:
    """Row of the first event at or after an absolute time, among the rows [low, high)."""
    high = recording.count if high is None else high
    least, most = _bracket(recording, time_us)
    if least <= high and low <= most:
        low, high = max(low, least), min(high, most)
    while high - low > _PROBE_EVENTS:
        middle = (low + high) // 2
        if recording.times(middle, middle + 1)[0] < time_us:
            low = middle + 1
        else:
            high = middle
    return low + int(np.searchsorted(recording.times(low, high), time_us, side="left"))


def _bracket(recording: Recording, time_us: int) -> tuple[int, int]:
    """Rows between which `first_at` lies, by the file's millisecond index, or the whole file without a valid one."""
    index, count, whole = recording.ms_to_idx, recording.count, (0, recording.count)
    if index is None or not len(index) or not count:
        return whole
    ms = min(max((time_us - recording.clock_us) // 1000, 0), len(index) - 1)
    low = int(index[ms])
    high = int(index[ms + 1]) if ms + 1 < len(index) else count
    if not 0 <= low <= high <= count:
        return whole
    # Recordings that were cropped by other tools keep an index that no longer fits.
    fits_below = low == 0 or recording.times(low - 1, low)[0] < time_us
    fits_above = high == count or recording.times(high, high + 1)[0] >= time_us
    return (low, high) if fits_below and fits_above else whole
