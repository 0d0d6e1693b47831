"""Reading any recording into `Events`: recognises the format, and reads the wanted span of time."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from crossdraft.checks import described
from crossdraft.errors import CrossdraftError
from crossdraft.events.aedat4 import read_aedat4
from crossdraft.events.binary import read_aedat2, read_dat
from crossdraft.events.clock import EXPONENTS
from crossdraft.events.evt import read_evt
from crossdraft.events.hdf5 import hdf5_layout, read_dsec, read_m3ed, read_mvsec, read_prophesee
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.ncaltech101 import read_ncaltech101
from crossdraft.events.npy import read_eventgpt
from crossdraft.events.npz import holds_arrays, read_npz
from crossdraft.events.rosbag import BAG1, BAG2, bag_files, read_rosbag
from crossdraft.events.stream import Events, Newest, Sensor, Window, check_sorted, checked_sensor, concatenate
from crossdraft.events.text import read_e2vid

Reader = Callable[[Path, Sensor | None, Window, EventLimits], Iterator[Events]]

# Every reader yields consecutive chunks, at least one, and may skip events outside the window. The first are of formats
# that do not state the unit of their times: these readers take it, or check the usual one.
UNSTATED = {
    "dsec": read_dsec, "m3ed": read_m3ed, "mvsec": read_mvsec, "eventgpt": read_eventgpt, "e2vid": read_e2vid,
    "npz": read_npz,
}  # fmt: skip
READERS: Mapping[str, Reader] = {
    **UNSTATED,
    "prophesee": read_prophesee, "dat": read_dat, "aedat2": read_aedat2, "aedat4": read_aedat4, "evt": read_evt,
    "ncaltech101": read_ncaltech101, "rosbag": read_rosbag,
}  # fmt: skip
SUFFIXES = {".dat": "dat", ".raw": "evt", ".txt": "e2vid", ".bin": "ncaltech101"}
BY_CONTENT = {
    ".h5": "HDF5", ".hdf5": "HDF5", ".npy": "numpy", ".zip": "zip", ".npz": "zip", ".aedat": "AEDAT",
    ".aedat4": "AEDAT", ".bag": "rosbag", ".db3": "rosbag", ".mcap": "rosbag",
}  # fmt: skip


def read_events(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the word that users look for)
    sensor: Sensor | None = None,
    start_us: int | None = None,
    end_us: int | None = None,
    newest: Newest | None = None,
    limits: EventLimits = DEFAULT_LIMITS,
    time_unit: str | None = None,
) -> Events:
    """Read the events with start_us <= t < end_us, or the newest of them.

    Args:
        path: the recording.
        format: name in `READERS`, or "rosbag:TOPIC"; recognised from the file if None.
        sensor: (width, height); if None, the file's own, or the usual camera of its format.
        start_us, end_us: absolute times on the recording's clock; None for its ends. HDF5, AEDAT 4, RAW and structured
            `.npy` are decoded only around the span; AEDAT 2, DAT, bags and text are not read beyond its end.
        newest: amount of the span, counted back from its last event; None for all. No more is held in memory.
        limits: limits on reading.
        time_unit: unit of the file's times, "s", "ms", "us" or "ns"; by default the format's usual one, after a check.

    Raises:
        CrossdraftError: missing, empty, damaged, unsafe or unknown file; events out of order or of the sensor; more of
            anything than `limits` allow.
    """
    newest = newest or Newest()
    chunks = checked_chunks(recording_path(path), format, sensor, Window(start_us, end_us, newest), limits, time_unit)
    return gathered(chunks, path, limits, newest)


def iter_events(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the word that users look for)
    sensor: Sensor | None = None,
    start_us: int | None = None,
    end_us: int | None = None,
    limits: EventLimits = DEFAULT_LIMITS,
    time_unit: str | None = None,
) -> Iterator[Events]:
    """Read as `read_events` does, as consecutive chunks of at most some million events, at least one.

    Memory is that of a chunk, except for EventGPT's `.npy`: it is one pickle, which is held whole.
    """
    return checked_chunks(recording_path(path), format, sensor, Window(start_us, end_us), limits, time_unit)


def gathered(
    chunks: Iterable[Events], source: object, limits: EventLimits = DEFAULT_LIMITS, newest: Newest | None = None
) -> Events:
    """Join consecutive chunks, or the newest of their events; older events are dropped while reading.

    Raises:
        CrossdraftError: more than `limits.events` at once, or an error of `concatenate`.
    """
    held: deque[Events] = deque()
    count, notes = 0, list[str]()
    for chunk in chunks:
        held.append(chunk)
        count += len(chunk)
        notes += chunk.notes
        if len(held) > 1:
            count -= _drop_old(held, count, newest)
        limits.check_held(source, count)
    whole = concatenate(held).noting(notes)
    return whole if newest is None else newest.of(whole)


def _drop_old(held: "deque[Events]", count: int, newest: Newest | None) -> int:
    """Drop leading chunks without any of the newest events; return the number of events in them."""
    dropped = 0
    while len(held) > 1:
        size = len(held[0])
        left = count - dropped - size
        enough = size == 0 or (
            newest is not None
            and left >= newest.least
            and (
                (newest.most is not None and left >= newest.most)
                or (newest.us is not None and left > 0 and held[0].t[-1] <= _end(held) - newest.us)
            )
        )
        if not enough:
            break
        dropped += size
        held.popleft()
    return dropped


def _end(held: "deque[Events]") -> int:
    """Time of the last event in chunks of which at least one holds events."""
    return next(int(chunk.t[-1]) for chunk in reversed(held) if len(chunk))


def checked_chunks(
    name: Path, kind: str | None, sensor: Sensor | None, window: Window, limits: EventLimits, unit: str | None = None
) -> Iterator[Events]:
    """Yield the chunks of a reader, checked: known format, in order, within the limits."""
    _check_file(name)
    if sensor is not None:
        sensor = checked_sensor(sensor, name)
        limits.check_sensor(name, *sensor)
    kind, _, topic = (kind or detect_format(name)).partition(":")
    if kind not in READERS or (topic and kind != "rosbag"):
        raise CrossdraftError(f"There is no event format {kind!r}; choose from {', '.join(READERS)}.")
    if window.start_us is not None and window.end_us is not None and window.end_us < window.start_us:
        raise CrossdraftError(
            f"The wanted time span ends ({window.end_us} µs) before it starts ({window.start_us} µs)."
        )
    first_us = last_us = None
    reader = _reader(kind, unit)
    for chunk in (partial(read_rosbag, topic=topic) if topic else reader)(name, sensor, window, limits):
        limits.check_sensor(name, chunk.width, chunk.height)
        if len(chunk):
            if last_us is not None:
                check_sorted(np.array([last_us, chunk.t0]), name)
            first_us = chunk.t0 if first_us is None else first_us
            last_us = chunk.t0 + chunk.duration_us
            limits.check_span(name, (last_us - first_us) / 1e6)
        yield chunk


def _reader(kind: str, unit: str | None) -> Reader:
    """Return the reader of a format; raise CrossdraftError if the unit of its times is unknown or not asked for."""
    if unit is None:
        return READERS[kind]
    if unit not in EXPONENTS:
        raise CrossdraftError(f"time_unit is {unit!r:.40}; give one of {', '.join(EXPONENTS)}.")
    if kind not in UNSTATED:
        raise CrossdraftError(f"Times of the format {kind} are in µs; time_unit is for {', '.join(UNSTATED)}.")
    return partial(UNSTATED[kind], unit=unit)


def detect_format(path: str | os.PathLike[str]) -> str:
    """Name of a recording's format, by its first bytes or, if these do not show it, by its suffix."""
    name = recording_path(path)
    _check_file(name)
    head = BAG1
    if not name.is_dir():
        with name.open("rb") as file:
            head = file.read(16)
    if head.startswith((BAG1, *BAG2)):
        return "rosbag"
    suffix = name.suffix.lower()
    if head.startswith(b"\x89HDF"):
        return hdf5_layout(name)
    if head.startswith(b"\x93NUMPY"):
        return "eventgpt"
    if head.startswith(b"PK"):
        return "npz" if holds_arrays(name) else "e2vid"
    if head.startswith(b"#!AER-DAT"):
        return "aedat4" if head.startswith(b"#!AER-DAT4") else "aedat2"
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if suffix in BY_CONTENT:
        raise CrossdraftError(f"{name} is not a whole {BY_CONTENT[suffix]} file; copy it again.")
    raise CrossdraftError(
        f"{name} is of no format that we know by its content or suffix; name the format, one of {', '.join(READERS)}."
    )


def recording_path(path: object) -> Path:
    """Path of a recording; raises CrossdraftError for any other value."""
    if not isinstance(path, str | os.PathLike):
        raise CrossdraftError(f"The recording's path is {described(path)}; give the path of a recording.")
    return Path(path)


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            if bag_files(path):
                return
            raise CrossdraftError(f"{path} is a folder; give the event recording itself.")
        if not path.is_file():
            raise CrossdraftError(f"There is no event recording at {path}; check the path.")
        size = path.stat().st_size
        path.open("rb").close()
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}.") from error
    if not size:
        raise CrossdraftError(f"{path} is empty; copy the recording again.")
