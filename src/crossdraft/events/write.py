"""Writing `Events` in any supported format, chosen by the file's suffix."""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.events.faery_io import write_faery
from crossdraft.events.hdf5_write import write_dsec_h5
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.npy import write_eventgpt_npy
from crossdraft.events.read import gathered
from crossdraft.events.stream import Events
from crossdraft.events.text import write_e2vid

# These formats are written from memory; HDF5 and text are written chunk by chunk.
_WHOLE: Mapping[str, Callable[[Path, Events], None]] = {
    ".npy": write_eventgpt_npy,
    ".aedat4": partial(write_faery, kind="aedat4"),
    ".raw": partial(write_faery, kind="evt2"),
    ".dat": partial(write_faery, kind="dat"),
}
SUFFIXES = (".h5", ".hdf5", ".txt", ".zip", *_WHOLE)


def write_events(
    path: str | os.PathLike[str], events: Events | Iterable[Events], limits: EventLimits = DEFAULT_LIMITS
) -> None:
    """Write a recording, or its consecutive chunks, in the format that the suffix names.

    DSEC `.h5`, EventGPT `.npy`, E2VID `.txt` or `.zip`; with the optional faery `.aedat4`, `.raw` (EVT2), `.dat`.

    Raises:
        CrossdraftError: another suffix, no chunk, more events than `limits` allow to hold where a format is written
            from memory, or events that do not fit the format.
    """
    name = Path(path)
    suffix = name.suffix.lower()
    chunks = [events] if isinstance(events, Events) else events
    if suffix in (".h5", ".hdf5"):
        write_dsec_h5(name, chunks)
    elif suffix in (".txt", ".zip"):
        write_e2vid(name, chunks)
    elif suffix in _WHOLE:
        _WHOLE[suffix](name, gathered(chunks, name, limits))
    else:
        raise CrossdraftError(f"Cannot write events to {name}; give it one of the suffixes {', '.join(SUFFIXES)}.")
