"""Any recording to `Events`: find out the format, read the wanted span of time."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.aedat2 import read_aedat2
from crossdraft.events.faery_io import read_aedat4, read_evt
from crossdraft.events.hdf5 import hdf5_layout, read_dsec, read_m3ed, read_mvsec
from crossdraft.events.npy import read_eventgpt
from crossdraft.events.prophesee import read_dat
from crossdraft.events.stream import Events, Sensor, Window, check_sorted, concatenate
from crossdraft.events.text import read_e2vid

Reader = Callable[[Path, Sensor | None, Window], Iterator[Events]]

# Every reader yields consecutive chunks, at least one, and may skip whatever lies outside the window.
READERS: Mapping[str, Reader] = {
    "dsec": read_dsec,
    "m3ed": read_m3ed,
    "mvsec": read_mvsec,
    "eventgpt": read_eventgpt,
    "e2vid": read_e2vid,
    "dat": read_dat,
    "aedat2": read_aedat2,
    "aedat4": read_aedat4,
    "evt": read_evt,
}
SUFFIXES = {".dat": "dat", ".raw": "evt", ".txt": "e2vid"}
BY_CONTENT = {
    ".h5": "HDF5",
    ".hdf5": "HDF5",
    ".npy": "numpy",
    ".zip": "zip",
    ".aedat": "AEDAT",
    ".aedat4": "AEDAT",
}


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A stretch of a recording that is read when somebody needs it: the moment that a clip shows.

    Args:
        path: the recording.
        start_us, end_us, format, sensor: as in `read_events`.
    """

    path: Path
    start_us: int | None = None
    end_us: int | None = None
    format: str | None = None
    sensor: Sensor | None = None

    def read(self) -> Events:
        """The events; errors as `read_events`."""
        return read_events(
            self.path, format=self.format, sensor=self.sensor, start_us=self.start_us, end_us=self.end_us
        )

    def __str__(self) -> str:
        return str(self.path)


def read_events(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the word that users look for)
    sensor: Sensor | None = None,
    start_us: int | None = None,
    end_us: int | None = None,
) -> Events:
    """Read the events with start_us <= t < end_us.

    Args:
        path: the recording.
        format: a name of `READERS`; found out from the file if None.
        sensor: (width, height); the file's own, or the usual camera of its format, if None.
        start_us, end_us: absolute times on the recording's clock; None for its ends. HDF5 files are read only
            around the span; AEDAT, DAT, RAW and text are not read beyond its end.

    Raises:
        CrossdraftError: missing, empty, damaged, unsafe or unknown file; events out of order or of the sensor.
    """
    return concatenate(
        list(iter_events(path, format=format, sensor=sensor, start_us=start_us, end_us=end_us))
    )


def iter_events(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the word that users look for)
    sensor: Sensor | None = None,
    start_us: int | None = None,
    end_us: int | None = None,
) -> Iterator[Events]:
    """Like `read_events`, as consecutive chunks of some million events, at least one.

    Memory is that of a chunk, but for EventGPT's `.npy`: it is one pickle, which is held whole and comes in one chunk.
    """
    name = Path(path)
    _check_file(name)
    kind = format or detect_format(name)
    if kind not in READERS:
        raise CrossdraftError(f"There is no event format {kind!r}; choose from {', '.join(READERS)}.")
    if start_us is not None and end_us is not None and end_us < start_us:
        raise CrossdraftError(f"The wanted time span ends ({end_us} µs) before it starts ({start_us} µs).")
    last_us: int | None = None
    for chunk in READERS[kind](name, sensor, Window(start_us, end_us)):
        if len(chunk):
            if last_us is not None:
                check_sorted(np.array([last_us, chunk.t0]), name)
            last_us = chunk.t0 + chunk.duration_us
        yield chunk


def detect_format(path: str | os.PathLike[str]) -> str:
    """The name of a recording's format, from its first bytes or, where those say nothing, its suffix."""
    name = Path(path)
    _check_file(name)
    with name.open("rb") as file:
        head = file.read(16)
    suffix = name.suffix.lower()
    if head.startswith(b"\x89HDF"):
        return hdf5_layout(name)
    if head.startswith(b"\x93NUMPY"):
        return "eventgpt"
    if head.startswith(b"PK"):
        return "e2vid"
    if head.startswith(b"#!AER-DAT"):
        return "aedat4" if head.startswith(b"#!AER-DAT4") else "aedat2"
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if suffix in BY_CONTENT:
        raise CrossdraftError(f"{name} is not a whole {BY_CONTENT[suffix]} file; copy it again.")
    raise CrossdraftError(
        f"{name} is of no format that we know by its content or suffix; "
        f"name the format, one of {', '.join(READERS)}."
    )


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise CrossdraftError(f"{path} is a folder; give the event recording itself.")
    if not path.is_file():
        raise CrossdraftError(f"There is no event recording at {path}; check the path.")
    try:
        size = path.stat().st_size
        path.open("rb").close()
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}.") from error
    if not size:
        raise CrossdraftError(f"{path} is empty; copy the recording again.")
