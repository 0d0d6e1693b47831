"""AEDAT 4, read and written, and RAW (EVT2) and DAT, written, through the optional package `faery`.

Two of its faults are guarded against: it may abort the whole process on a damaged file, so reading happens in
a separate process (`faery_worker`), and from times that fall it writes a RAW file without end.
"""

import importlib
import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import Events, Sensor, Window, check_sorted
from crossdraft.files import atomic_path

CHUNK_EVENTS = 1_000_000
ROW = np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("p", "?")])  # like faery.EVENTS_DTYPE in memory
_WORKER = Path(__file__).with_name("faery_worker.py")


def read_aedat4(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """Yield the first event stream of an AEDAT 4 file, a few million events at a time."""
    return _read(path, sensor, window, limits)


def write_faery(path: str | Path, events: Events, kind: str) -> None:
    """Write events as "aedat4", "evt2" (a .raw) or "dat".

    EVT3 is left out: faery 0.7.1 loses time in recordings that are silent for longer than its 16.8 s clock.
    """
    _require_faery()
    faery = importlib.import_module("faery")
    check_sorted(events.t, path)
    rows: Any = np.empty(len(events), faery.EVENTS_DTYPE)  # numpy's type stubs know no field names
    for name in "txyp":
        rows[name] = getattr(events, name)
    file_type, version = {"aedat4": ("aedat", None), "evt2": ("evt", "evt2"), "dat": ("dat", "dat2")}[kind]
    with atomic_path(path) as temporary:
        stream = faery.events_stream_from_array(rows, (events.width, events.height))
        try:
            stream.to_file(temporary, version=version, file_type=file_type)
        except (RuntimeError, OSError) as error:
            raise CrossdraftError(f"Cannot write {path}: {error}.") from error
        finally:  # faery leaves its temporary file when the disk is full
            temporary.with_name(f"{temporary.name}.write").unlink(missing_ok=True)


def _read(path: Path, sensor: Sensor | None, window: Window, limits: EventLimits) -> Iterator[Events]:
    _require_faery()
    numbers = (*(sensor or (1280, 720)), limits.worker_bytes, limits.worker_seconds)
    # -P: the worker's own folder holds modules that must not hide others of the same name.
    command = [sys.executable, "-P", str(_WORKER), str(path), "aedat", *map(str, numbers)]
    quiet = os.environ | {"RUST_BACKTRACE": "0"}  # a backtrace, which is not read, can take 20 s
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, env=quiet) as worker,
    ):
        try:
            if worker.stdout is None or len(head := worker.stdout.read(8)) < 8:
                raise _failure(path, worker, complaints)
            width, height = sensor or struct.unpack("<II", head)
            limits.check_sensor(path, width, height)
            done = 0
            while True:
                poured = worker.stdout.read(CHUNK_EVENTS * ROW.itemsize)
                if len(poured) < CHUNK_EVENTS * ROW.itemsize and worker.wait() != 0:
                    raise _failure(path, worker, complaints)
                rows: Any = np.frombuffer(poured, ROW)
                done += len(rows)
                limits.check_scanned(path, done)
                chunk = Events.checked(rows["x"], rows["y"], rows["t"], rows["p"], width, height, source=path)
                yield window.clip(chunk)
                if len(chunk) < CHUNK_EVENTS or (window.end_us is not None and chunk.t[-1] >= window.end_us):
                    return
        finally:
            worker.kill()


def _failure(path: Path, worker: subprocess.Popen[bytes], complaints: IO[bytes]) -> CrossdraftError:
    status = worker.wait()
    complaints.seek(0)
    lines = complaints.read(1 << 20).decode("utf-8", errors="replace").strip().splitlines()
    reason = lines[-1] if lines and status == 1 else f"faery crashed on it (status {status})"
    return CrossdraftError(f"{path} cannot be read: {reason}; the recording is damaged or of another kind.")


def _require_faery() -> None:
    if importlib.util.find_spec("faery") is None:
        raise CrossdraftError(
            "AEDAT4 files are read and written, RAW and DAT files written by the optional package faery; run: "
            "pip install faery"
        )
