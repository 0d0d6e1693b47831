"""Event recordings in HDF5: DSEC, M3ED, MVSEC and Prophesee's, read by time window without reading the whole file."""

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.ecf import stored_events
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.random_access import Recording, Times, chunks_of
from crossdraft.events.stream import LAST_US, Columns, Events, Sensor, Window, check_numbers

if TYPE_CHECKING:
    import h5py

MOST_LINKS = 16  # links on the path to a data set; a file may hold a cycle of links
ELSEWHERE = "lies in another file; give a recording that is one file."


@contextmanager
def opened(path: Path) -> Iterator["h5py.File"]:
    """Open an HDF5 file for reading, with the compression plugins that event data sets need.

    Raises:
        CrossdraftError: no plugins, not an HDF5 file, damaged, or lacking a part that is read.
    """
    require_plugins()
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except KeyError as error:
        raise CrossdraftError(f"{path} lacks a part: {error.args[0]}; it is not a whole recording.") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CrossdraftError(
            f"{path} cannot be read as HDF5 ({error}); it is damaged or was cut off, so copy it again."
        ) from error


def require_plugins() -> None:
    """Register the Blosc filters with HDF5; raise CrossdraftError if the package is missing."""
    try:
        import hdf5plugin  # noqa: F401 (the import registers the filters)
    except ImportError as error:
        raise CrossdraftError(
            "Event files in HDF5 are compressed with Blosc, and the plugin for it is missing; "
            "run: pip install hdf5plugin"
        ) from error


def member(file: "h5py.File", name: str) -> "h5py.Group | h5py.Dataset | h5py.Datatype | None":
    """Find the object of a name, if it lies in this very file; `None` if there is none.

    HDF5 follows a link to another file on access, so each step of the path is checked before it is taken.

    Raises:
        CrossdraftError: the path leads out of the file, or has too many links.
    """
    import h5py

    found: h5py.Group | h5py.Dataset | h5py.Datatype = file
    left, links = deque(name.split("/")), 0
    while left:
        part = left.popleft()
        if part in ("", "."):
            continue
        if not isinstance(found, h5py.Group) or (link := found.get(part, getlink=True)) is None:
            return None
        if isinstance(link, h5py.HardLink):
            found = found[part]
        elif isinstance(link, h5py.SoftLink) and links < MOST_LINKS:
            links += 1
            found = file if link.path.startswith("/") else found
            left.extendleft(reversed(link.path.split("/")))
        else:
            raise CrossdraftError(f"{file.filename}: {name} {ELSEWHERE}")
    return found


def dataset(file: "h5py.File", name: str, limits: EventLimits = DEFAULT_LIMITS, kinds: str = "iufb") -> "h5py.Dataset":
    """Find a data set of numbers in this very file, with blocks of allowed size; its values are not read.

    Raises:
        CrossdraftError: the name leads to another object, another file, or blocks beyond `limits.block_bytes`.
        KeyError: the name leads to nothing.
    """
    import h5py

    found = member(file, name)
    if found is None:
        raise KeyError(name)
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in kinds:
        raise CrossdraftError(f"{file.filename}: {name} should be numbers and is not; this is no whole recording.")
    if found.is_virtual or found.external or found.file.filename != file.filename:
        raise CrossdraftError(f"{file.filename}: {name} {ELSEWHERE}")
    limits.check_block(f"{file.filename}: {name}", math.prod(found.chunks or ()) * found.dtype.itemsize)
    return found


def check_packing(file: "h5py.File", parts: "Sequence[h5py.Dataset]", limits: EventLimits) -> None:
    """Raise CrossdraftError if data sets together state an unpacked size far above their stored one."""
    unpacked = sum(part.size * part.dtype.itemsize for part in parts)
    limits.check_packing(file.filename, sum(part.id.get_storage_size() for part in parts), unpacked)


def whole_number(value: object, name: str, path: Path) -> int:
    """Convert one stored number to an int; raise CrossdraftError for no number, several, or an extreme one."""
    import h5py

    if isinstance(value, h5py.Dataset):  # only a data set of a single value is read
        value = value[()] if value.size == 1 else None
    stored = np.asarray(value)
    if stored.size == 1 and stored.dtype.kind in "iuf":
        number = stored.item()
        if abs(number) < LAST_US and number == int(number):  # NaN fails the first comparison
            return int(number)
    raise CrossdraftError(f"{path}: {name} should be one whole number and is not; the file is damaged.")


def read_dsec(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS, unit: str | None = None
) -> Iterator[Events]:
    """Read `/events/{x,y,t,p}`, `/ms_to_idx`, `/t_offset`; 640x480 unless attributes width and height differ."""
    with opened(path) as file:
        if sensor is None:
            usual = (("width", 640), ("height", 480))
            width, height = (whole_number(file.attrs.get(name, size), name, path) for name, size in usual)
            sensor = width, height
        offset = (
            whole_number(dataset(file, "t_offset"), "t_offset", path) if member(file, "t_offset") is not None else 0
        )
        recording = _column_datasets(file, "events", "ms_to_idx", offset, sensor, limits)
        yield from chunks_of(recording, window, path, limits, unit)


def read_m3ed(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS, unit: str | None = None
) -> Iterator[Events]:
    """Read `/prophesee/left/{x,y,t,p,ms_map_idx}`; 1280x720."""
    group = "prophesee/left"
    with opened(path) as file:
        recording = _column_datasets(file, group, f"{group}/ms_map_idx", 0, sensor or (1280, 720), limits)
        yield from chunks_of(recording, window, path, limits, unit)


def read_mvsec(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS, unit: str | None = None
) -> Iterator[Events]:
    """Read `/davis/left/events` [N, 4] float64: x, y, epoch seconds, polarity -1/+1; 346x260."""
    with opened(path) as file:
        table = dataset(file, "davis/left/events", limits)
        if table.ndim != 2 or table.shape[1] != 4:
            raise CrossdraftError(f"{path}: MVSEC events must be [N, 4], not {table.shape}; the file is damaged.")
        check_packing(file, [table], limits)

        def times(i: int, j: int) -> Times:
            return table[i:j, 2]

        def columns(i: int, j: int) -> Columns:
            x, y, t, p = table[i:j].T
            return x, y, t, p

        recording = Recording(len(table), sensor or (346, 260), times, columns, unit="s")
        yield from chunks_of(recording, window, path, limits, unit)


def read_prophesee(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """Read `/CD/events`, records of x, y, p, t (µs); 1280x720 unless the attribute geometry, "WxH", differs."""
    with opened(path) as file:
        table = dataset(file, "CD/events", limits, kinds="V")
        if table.ndim != 1 or not {"x", "y", "p", "t"} <= set(table.dtype.names or ()):
            raise CrossdraftError(f"{path}: CD/events should be a row of events and is not; the file is damaged.")
        check_numbers({name: table.dtype[name] for name in "xytp"}, path)
        check_packing(file, [table], limits)
        if sensor is None:
            stated = re.fullmatch(r"(?:b')?(\d{1,5})x(\d{1,5})'?", str(file.attrs.get("geometry")))
            sensor = (int(stated[1]), int(stated[2])) if stated else (1280, 720)
        rows = stored_events(table)

        def columns(i: int, j: int) -> Columns:
            events = rows(i, j)
            return events["x"], events["y"], events["t"], events["p"]

        recording = Recording(len(table), sensor, lambda i, j: rows(i, j)["t"], columns)
        yield from chunks_of(recording, window, path, limits, "us")


def hdf5_layout(path: Path) -> str:
    """HDF5 format of a file: "dsec", "m3ed", "mvsec" or "prophesee".

    Raises:
        CrossdraftError: the file has another layout.
    """
    signs = {
        "events/t": "dsec", "prophesee/left/t": "m3ed", "davis/left/events": "mvsec", "CD/events": "prophesee"
    }  # fmt: skip
    with opened(path) as file:
        for key, layout in signs.items():
            if member(file, key) is not None:
                return layout
        raise CrossdraftError(
            f"{path} holds no events that we know; expected events/t (DSEC), prophesee/left/t (M3ED), "
            f"davis/left/events (MVSEC) or CD/events (Prophesee), found {', '.join(file) or 'nothing'}."
        )


def _column_datasets(
    file: "h5py.File", group: str, index: str, clock_us: int, sensor: Sensor, limits: EventLimits
) -> Recording:
    x, y, t, p = (dataset(file, f"{group}/{name}", limits) for name in "xytp")
    if any(column.ndim != 1 or column.shape != t.shape for column in (x, y, t, p)):
        raise CrossdraftError(f"{file.filename}: the columns of {group} differ in length; the file is damaged.")
    check_packing(file, [x, y, t, p], limits)

    ms_to_idx = dataset(file, index, limits) if member(file, index) is not None else None
    if ms_to_idx is not None and (ms_to_idx.ndim != 1 or ms_to_idx.dtype.kind not in "iu"):
        raise CrossdraftError(
            f"{file.filename}: {index} should be a row of event numbers, one a millisecond; the file is damaged."
        )
    return Recording.of((x, y, t, p), sensor, ms_to_idx, clock_us)
