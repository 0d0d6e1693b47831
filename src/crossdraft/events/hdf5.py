"""Event recordings in HDF5: DSEC, M3ED and MVSEC, read by time window without reading the whole file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import LAST_US, Columns, Events, Sensor, Window

if TYPE_CHECKING:  # whoever only draws or simulates events needs no HDF5
    import h5py

CHUNK_EVENTS = 8_000_000  # 104 MB in memory
_PROBE_EVENTS = 65_536  # a binary search stops here and reads the rest at once
Times = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Recording:
    """One camera's events in an open file.

    Attributes:
        count: number of events.
        sensor: (width, height).
        times: absolute µs of the rows [i, j), float64 where the file keeps them so, not yet checked.
        columns: x, y, t (absolute µs), p of the rows [i, j), not yet checked.
        ms_to_idx: dataset whose entry m is the first event at or after m ms on the file's own clock, or None.
        clock_us: absolute time of that clock's zero.
    """

    count: int
    sensor: Sensor
    times: Callable[[int, int], Times]
    columns: Callable[[int, int], Columns]
    ms_to_idx: "h5py.Dataset | None" = None
    clock_us: int = 0


def read_dsec(path: Path, sensor: Sensor | None, window: Window) -> Iterator[Events]:
    """`/events/{x,y,t,p}`, `/ms_to_idx`, `/t_offset`; 640x480 unless attributes width and height say otherwise."""
    with opened(path) as file:
        if sensor is None:
            usual = (("width", 640), ("height", 480))
            width, height = (_whole_number(file.attrs.get(name, size), name, path) for name, size in usual)
            sensor = width, height
        offset = _whole_number(dataset(file, "t_offset")[()], "t_offset", path) if "t_offset" in file else 0
        recording = _column_datasets(file, "events", "ms_to_idx", offset, sensor)
        yield from _chunks(recording, window, path)


def read_m3ed(path: Path, sensor: Sensor | None, window: Window) -> Iterator[Events]:
    """`/prophesee/left/{x,y,t,p,ms_map_idx}`; 1280x720."""
    with opened(path) as file:
        recording = _column_datasets(
            file, "prophesee/left", "prophesee/left/ms_map_idx", 0, sensor or (1280, 720)
        )
        yield from _chunks(recording, window, path)


def read_mvsec(path: Path, sensor: Sensor | None, window: Window) -> Iterator[Events]:
    """`/davis/left/events` [N, 4] float64: x, y, epoch seconds, polarity -1/+1; 346x260."""
    with opened(path) as file:
        table = dataset(file, "davis/left/events")
        if table.ndim != 2 or table.shape[1] != 4:
            raise CrossdraftError(
                f"{path}: MVSEC events must be [N, 4], not {table.shape}; the file is damaged."
            )

        # Times stay float64 until they were checked: NaN and infinity have no int64.
        def times(i: int, j: int) -> Times:
            return np.rint(table[i:j, 2] * 1e6)

        def columns(i: int, j: int) -> Columns:
            x, y, t, p = table[i:j].T
            return x, y, t * 1e6, p

        yield from _chunks(_Recording(len(table), sensor or (346, 260), times, columns), window, path)


def hdf5_layout(path: Path) -> str:
    """Which of our HDF5 formats a file holds: "dsec", "m3ed" or "mvsec".

    Raises:
        CrossdraftError: none of them.
    """
    signs = {"events/t": "dsec", "prophesee/left/t": "m3ed", "davis/left/events": "mvsec"}
    with opened(path) as file:
        for key, layout in signs.items():
            if key in file:
                return layout
        if "CD/events" in file:
            raise CrossdraftError(
                f"{path} is Prophesee HDF5, whose ECF codec has no free reader; export it as RAW."
            )
        raise CrossdraftError(
            f"{path} holds no events that we know; expected events/t (DSEC), prophesee/left/t (M3ED) "
            f"or davis/left/events (MVSEC), found {', '.join(file) or 'nothing'}."
        )


@contextmanager
def opened(path: Path) -> Iterator["h5py.File"]:
    """An HDF5 file open for reading, with the compression plugins that event data sets need.

    Raises:
        CrossdraftError: no plugins, not an HDF5 file, damaged, or lacking a part that is asked for.
    """
    require_plugins()
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except KeyError as error:
        raise CrossdraftError(
            f"{path} lacks a part: {error.args[0]}; it is not a whole recording."
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CrossdraftError(
            f"{path} cannot be read as HDF5 ({error}); it is damaged or was cut off, so copy it again."
        ) from error


def require_plugins() -> None:
    """Register the Blosc filters with HDF5; CrossdraftError where the package is missing."""
    try:
        import hdf5plugin  # noqa: F401 (the import registers the filters)
    except ImportError as error:
        raise CrossdraftError(
            "Event files in HDF5 are compressed with Blosc, and the plugin for it is missing; "
            "run: pip install hdf5plugin"
        ) from error


def dataset(file: "h5py.File", name: str) -> "h5py.Dataset":
    """A data set of numbers; CrossdraftError where the name leads to something else, KeyError to nothing."""
    import h5py

    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "iufb":
        raise CrossdraftError(
            f"{file.filename}: {name} should be numbers and is not; this is no whole recording."
        )
    return found


def _whole_number(value: object, name: str, path: Path) -> int:
    """One stored number as an int; CrossdraftError where it is none, several, or absurd."""
    stored = np.asarray(value)
    if stored.size == 1 and stored.dtype.kind in "iuf":
        number = stored.item()
        if abs(number) < LAST_US and number == int(number):  # the first is false of NaN
            return int(number)
    raise CrossdraftError(f"{path}: {name} should be one whole number and is not; the file is damaged.")


def _column_datasets(file: "h5py.File", group: str, index: str, clock_us: int, sensor: Sensor) -> _Recording:
    x, y, t, p = (dataset(file, f"{group}/{name}") for name in "xytp")
    if any(column.ndim != 1 or column.shape != t.shape for column in (x, y, t, p)):
        raise CrossdraftError(
            f"{file.filename}: the columns of {group} differ in length; the file is damaged."
        )

    # t is uint32 in DSEC: added to a large offset it overflows, so it becomes int64 first.
    wide = np.float64 if t.dtype.kind == "f" else np.int64

    def times(i: int, j: int) -> Times:
        return t[i:j].astype(wide) + clock_us

    def columns(i: int, j: int) -> Columns:
        return x[i:j], y[i:j], times(i, j), p[i:j]

    ms_to_idx = dataset(file, index) if index in file else None
    if ms_to_idx is not None and (ms_to_idx.ndim != 1 or ms_to_idx.dtype.kind not in "iu"):
        raise CrossdraftError(
            f"{file.filename}: {index} should be a row of event numbers, one a millisecond; the file is damaged."
        )
    return _Recording(len(t), sensor, times, columns, ms_to_idx, clock_us)


def _chunks(recording: _Recording, window: Window, path: Path) -> Iterator[Events]:
    """The events inside the window, CHUNK_EVENTS at a time; one empty chunk when there is none."""
    first = 0 if window.start_us is None else _first_at(recording, window.start_us)
    last = recording.count if window.end_us is None else max(first, _first_at(recording, window.end_us))
    for i in range(first, max(last, first + 1), CHUNK_EVENTS):
        yield Events.checked(
            *recording.columns(i, min(i + CHUNK_EVENTS, last)), *recording.sensor, source=path
        )


def _first_at(recording: _Recording, time_us: int) -> int:
    """Row of the first event at or after an absolute time."""
    low, high = _bracket(recording, time_us)
    while high - low > _PROBE_EVENTS:
        middle = (low + high) // 2
        if recording.times(middle, middle + 1)[0] < time_us:
            low = middle + 1
        else:
            high = middle
    return low + int(np.searchsorted(recording.times(low, high), time_us, side="left"))


def _bracket(recording: _Recording, time_us: int) -> tuple[int, int]:
    """Rows between which `_first_at` lies, by the file's millisecond index, or the whole file without a good one."""
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
