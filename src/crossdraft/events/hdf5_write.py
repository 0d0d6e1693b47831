"""Write DSEC's `events.h5`, compressed as DSEC's own, in one pass and bounded memory."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.hdf5 import require_plugins
from crossdraft.events.stream import Events, batches
from crossdraft.files import DeferredErrorFile, atomic_path

if TYPE_CHECKING:
    import h5py

BATCH_EVENTS = 1 << 20
STORED_CHUNK = 1 << 17  # events per compressed block: small enough to slice, large enough to pack well
MAX_SPAN_US = (1 << 32) - 1  # DSEC keeps time in uint32 (71.6 min)
COLUMNS = {"x": "u2", "y": "u2", "t": "u4", "p": "u1"}


def write_dsec_h5(path: str | Path, events: Events | Iterable[Events]) -> int:
    """Write events as `/events/{x,y,t,p}`, `/ms_to_idx`, `/t_offset`, and the sensor as attributes width, height.

    Times are kept exactly: `t_offset` is the first event's time, and `t + t_offset` is absolute.

    Args:
        path: a name ending in .h5 or .hdf5.
        events: a recording, or its consecutive chunks.

    Returns:
        Number of events written.

    Raises:
        CrossdraftError: another suffix, no chunk, chunks of different sensors or out of order, more than 71.6
            minutes, or an unwritable folder.
    """
    if Path(path).suffix.lower() not in (".h5", ".hdf5"):
        raise CrossdraftError(f"Cannot write {path} as DSEC events; give it a name that ends in .h5.")
    require_plugins()
    import h5py

    chunks = batches([events] if isinstance(events, Events) else events, BATCH_EVENTS)
    first = next(chunks)
    with (
        atomic_path(path) as temporary,
        DeferredErrorFile(temporary) as disk,
        h5py.File(temporary, "w", driver="fileobj", fileobj=disk) as file,
    ):
        file.attrs["width"], file.attrs["height"] = first.width, first.height
        file["t_offset"] = np.int64(first.t0)
        return _write_columns(file, disk, chain([first], chunks), first.t0, path)


def _write_columns(
    file: "h5py.File", disk: DeferredErrorFile, chunks: Iterable[Events], offset: int, path: str | Path
) -> int:
    import hdf5plugin

    packing = hdf5plugin.Blosc(cname="zstd", clevel=3, shuffle=hdf5plugin.Blosc.SHUFFLE)
    group = file.create_group("events")
    columns = {
        name: group.create_dataset(name, (0,), dtype, chunks=(STORED_CHUNK,), maxshape=(None,), compression=packing)
        for name, dtype in COLUMNS.items()
    }
    index: list[NDArray[np.uint64]] = [np.zeros(1, np.uint64)]  # entry 0: the first event at or after 0 ms
    count, next_ms = 0, 1
    for chunk in _checked(chunks, file, path):
        t = chunk.t - offset
        values = {"x": chunk.x, "y": chunk.y, "t": t.astype(np.uint32), "p": chunk.p}
        for name, column in columns.items():
            column.resize(count + len(chunk), axis=0)
            column[count:] = values[name]
        disk.check()
        last_ms = int(t[-1]) // 1000
        marks = np.arange(next_ms, last_ms + 1) * 1000
        index.append((np.searchsorted(t, marks) + count).astype(np.uint64))
        count, next_ms = count + len(chunk), max(next_ms, last_ms + 1)
    file["ms_to_idx"] = np.concatenate(index)
    return count


def _checked(chunks: Iterable[Events], file: "h5py.File", path: str | Path) -> Iterator[Events]:
    """Skip empty chunks; raise CrossdraftError if the chunks are not of one recording that fits the format."""
    first = last = None
    for chunk in chunks:
        if (chunk.width, chunk.height) != (file.attrs["width"], file.attrs["height"]):
            raise CrossdraftError(f"Cannot write {path}: the chunks come from sensors of different sizes.")
        if not len(chunk):
            continue
        first = chunk.t0 if first is None else first
        if last is not None and chunk.t0 < last:
            raise CrossdraftError(
                f"Cannot write {path}: a chunk begins {last - chunk.t0} µs before the one in front ends."
            )
        last = chunk.t0 + chunk.duration_us
        if last - first > MAX_SPAN_US:
            raise CrossdraftError(f"Cannot write {path}: DSEC files hold at most 71.6 minutes; write shorter pieces.")
        yield chunk
