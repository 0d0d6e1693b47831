"""Open an HDF5 file, with the plugins that event recordings need, and look at its parts before reading them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import LAST_US

if TYPE_CHECKING:  # whoever only draws or simulates events needs no HDF5
    import h5py


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
        raise CrossdraftError(f"{path} lacks a part: {error.args[0]}; it is not a whole recording.") from error
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


def dataset(file: "h5py.File", name: str, limits: EventLimits = DEFAULT_LIMITS) -> "h5py.Dataset":
    """A data set of numbers that lies in this very file, in blocks that may be unpacked; its values are not read.

    Raises:
        CrossdraftError: the name leads to something else, to another file, or to blocks beyond `limits.block_bytes`.
        KeyError: it leads to nothing.
    """
    import h5py

    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "iufb":
        raise CrossdraftError(f"{file.filename}: {name} should be numbers and is not; this is no whole recording.")
    if found.is_virtual or found.external or found.file.filename != file.filename:
        raise CrossdraftError(f"{file.filename}: {name} lies in another file; give a recording that is one file.")
    block = math.prod(found.chunks or ()) * found.dtype.itemsize
    if block > limits.block_bytes:
        raise CrossdraftError(
            f"{file.filename}: {name} is stored in blocks of {block:,} bytes, above the limit of "
            f"{limits.block_bytes:,}; write it again in smaller blocks, or raise EventLimits.block_bytes."
        )
    return found


def check_packing(file: "h5py.File", parts: "Sequence[h5py.Dataset]", limits: EventLimits) -> None:
    """Raise CrossdraftError if the parts together claim far more than what is stored of them."""
    unpacked = sum(part.size * part.dtype.itemsize for part in parts)
    limits.check_packing(file.filename, sum(part.id.get_storage_size() for part in parts), unpacked)


def whole_number(value: object, name: str, path: Path) -> int:
    """One stored number as an int; CrossdraftError where it is none, several, or absurd."""
    import h5py

    if isinstance(value, h5py.Dataset):  # of which only a single value is ever read
        value = value[()] if value.size == 1 else None
    stored = np.asarray(value)
    if stored.size == 1 and stored.dtype.kind in "iuf":
        number = stored.item()
        if abs(number) < LAST_US and number == int(number):  # the first is false of NaN
            return int(number)
    raise CrossdraftError(f"{path}: {name} should be one whole number and is not; the file is damaged.")
