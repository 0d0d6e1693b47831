"""EventBench's `.npz`: plain arrays x, y, t, p, or one array `event_data` with them; pickled content is refused."""

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.lib import format as npy_format
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.random_access import Recording, chunks_of
from crossdraft.events.stream import Events, Sensor, Window

TOGETHER = "event_data"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)


def read_npz(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS, unit: str | None = None
) -> Iterator[Events]:
    """Yield the events of an `.npz`, times usually in µs; the file does not state its sensor, so `sensor` is needed.

    `event_data` is [N, 4] of x, y, t, p, or a structured array with fields of these names.
    """
    if sensor is None:
        raise CrossdraftError(f"{path} does not say how large its sensor is; give the sensor size.")
    try:
        with zipfile.ZipFile(path) as archive:
            x, y, t, p = _columns(archive, path, limits)
    except _DAMAGE as error:
        raise CrossdraftError(f"{path} cannot be read as .npz ({error}); it is damaged, so copy it again.") from error

    if any(column.ndim != 1 or column.shape != t.shape for column in (x, y, t, p)):
        raise CrossdraftError(f"{path}: the columns x, y, t, p differ in length; the file is damaged.")
    limits.check_scanned(path, len(t))

    yield from chunks_of(Recording.of((x, y, t, p), sensor), window, path, limits, unit)


def holds_arrays(path: Path) -> bool:
    """True if a zip is an `.npz`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except _DAMAGE:
        return False


def _columns(archive: zipfile.ZipFile, path: Path, limits: EventLimits) -> list[NDArray[Any]]:
    names = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
    if TOGETHER in names:
        table = _array(archive, names[TOGETHER], path, limits)
        if table.dtype.names is not None and set("xytp") <= set(table.dtype.names):
            return [table[name] for name in "xytp"]
        if table.ndim != 2 or table.shape[1] != 4:
            raise CrossdraftError(f"{path}: {TOGETHER} is {table.dtype} {list(table.shape)}; it should be [N, 4].")
        return list(table.T)
    missing = [name for name in "xytp" if name not in names]
    if missing:
        raise CrossdraftError(f"{path} lacks the event columns {', '.join(missing)}, and {TOGETHER} too.")
    return [_array(archive, names[name], path, limits) for name in "xytp"]


def _array(archive: zipfile.ZipFile, name: str, path: Path, limits: EventLimits) -> NDArray[Any]:
    """Read an array of the archive, after comparing its header with the stored size."""
    entry = archive.getinfo(name)
    limits.check_packing(path, entry.compress_size, entry.file_size)
    limits.check_whole(path, entry.file_size)
    with archive.open(name) as file:
        major = npy_format.read_magic(file)[0]
        read_header = npy_format.read_array_header_1_0 if major == 1 else npy_format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise CrossdraftError(f"{path}: {name} is pickled, and a pickle may run a program; save plain arrays.")
    if math.prod(shape) * dtype.itemsize > entry.file_size:
        raise CrossdraftError(f"{path}: {name} claims more than is stored of it; the file is damaged.")
    with archive.open(name) as file:
        return npy_format.read_array(file, allow_pickle=False)
