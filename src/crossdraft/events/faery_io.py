"""AEDAT 4 and Prophesee RAW (EVT2, EVT3) through the optional package `faery`.

Its Rust core reports some faults as a panic, which Python sees as a BaseException, and it writes a RAW file
without end from times that step back: hence the two guards below.
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events, Sensor, Window, batches, check_sorted
from crossdraft.files import atomic_path

CHUNK_EVENTS = 4_000_000
FILE_TYPES = {"aedat4": "aedat", "evt": "evt"}
_FALLBACK_SENSOR = (1280, 720)  # of RAW files whose header names none


def read_aedat4(path: Path, sensor: Sensor | None, window: Window) -> Iterator[Events]:
    """The first event stream of an AEDAT 4 file, a few million events at a time."""
    return _read(path, sensor, window, "aedat4")


def read_evt(path: Path, sensor: Sensor | None, window: Window) -> Iterator[Events]:
    """A Prophesee RAW file, EVT2 or EVT3. The format cannot tell a cut-off file: what is there is read."""
    return _read(path, sensor, window, "evt")


def write_faery(path: str | Path, events: Events, kind: str) -> None:
    """Write "aedat4", "evt2" (a .raw) or "dat".

    EVT3 is left out: faery 0.7.1 loses time in recordings that are silent for longer than its 16.8 s clock.
    """
    faery = _faery()
    check_sorted(events.t, path)
    rows: Any = np.empty(len(events), faery.EVENTS_DTYPE)  # numpy's stubs know no field names
    for name in "txyp":
        rows[name] = getattr(events, name)
    file_type, version = {"aedat4": ("aedat", None), "evt2": ("evt", "evt2"), "dat": ("dat", "dat2")}[kind]
    with atomic_path(path) as temporary, _explained(f"Cannot write {path}"):
        stream = faery.events_stream_from_array(rows, (events.width, events.height))
        stream.to_file(temporary, version=version, file_type=file_type)


def _read(path: Path, sensor: Sensor | None, window: Window, kind: str) -> Iterator[Events]:
    faery = _faery()
    with _explained(f"{path} cannot be read"):
        stream = faery.events_stream_from_file(
            path, dimensions_fallback=sensor or _FALLBACK_SENSOR, file_type=FILE_TYPES[kind]
        )
        size = sensor or stream.dimensions()
        yield from batches(_chunks(stream, size, window, path), CHUNK_EVENTS)


def _chunks(stream: Iterable[np.ndarray], size: Sensor, window: Window, path: Path) -> Iterator[Events]:
    yield Events.empty(*size)
    for rows in stream:
        chunk = Events.checked(rows["x"], rows["y"], rows["t"], rows["p"], *size, source=path)
        yield window.clip(chunk)
        if window.end_us is not None and len(chunk) and chunk.t[-1] >= window.end_us:
            return


def _faery() -> ModuleType:
    try:
        return importlib.import_module("faery")
    except ImportError as error:
        raise CrossdraftError(
            "AEDAT4 and Prophesee RAW files are read and written by the optional package faery; run: pip install faery"
        ) from error


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (CrossdraftError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split())
        raise CrossdraftError(f"{what}: {reason}; the recording is damaged or of another kind.") from error
