"""E2VID's text recordings: a line "width height", then a line "t x y p" per event, t in seconds; or a zip of it."""

import io
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.clock import time_unit
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import Events, Sensor, Window, whole_times
from crossdraft.files import atomic_path

CHUNK_LINES = 1 << 18
MAX_LINE = 256  # characters; numpy writes four numbers in at most 100


def read_e2vid(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS, unit: str | None = None
) -> Iterator[Events]:
    """Yield the events of a `.txt` or `.zip`; text without a size line needs `sensor`. Reads a few lines at a time."""
    with _opened(path, limits) as file:
        (width, height), lines = _size_and_events(file, sensor, path, limits)
        done, notes = 0, tuple[str, ...]()
        while (some := list(islice(lines, CHUNK_LINES))) or not done:
            t, x, y, p = _table(some, path, done).T
            if unit is None:
                unit, notes = time_unit(lambda i, j, t=t: t[i:j], len(t), (width, height), "s", path)
            chunk = Events.checked(x, y, whole_times(t, path, unit), p, width, height, source=path).noting(notes)
            done += max(len(chunk), 1)
            yield window.clip(chunk)
            if window.ends_before(chunk.t):
                return


def write_e2vid(path: str | Path, chunks: Iterable[Events]) -> None:
    """Write E2VID's text with µs resolution; a name ending in .zip gives the zipped form of E2VID's demos.

    Raises:
        CrossdraftError: there is no chunk at all.
    """
    name = Path(path)
    with atomic_path(name) as temporary:
        if name.suffix.lower() != ".zip":
            with temporary.open("w", encoding="ascii") as file:
                _write(file, chunks)
            return
        with (
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("events.txt", "w") as raw,
            io.TextIOWrapper(raw, encoding="ascii") as file,
        ):
            _write(file, chunks)


def _write(file: TextIO, chunks: Iterable[Events]) -> None:
    rest = iter(chunks)
    first = next(rest, None)
    if first is None:
        raise CrossdraftError("There are no events to write.")
    file.write(f"{first.width} {first.height}\n")
    for chunk in chain([first], rest):
        rows = zip((chunk.t / 1e6).tolist(), chunk.x.tolist(), chunk.y.tolist(), chunk.p.tolist(), strict=True)
        file.writelines(f"{seconds:.6f} {x} {y} {p}\n" for seconds, x, y, p in rows)


@contextmanager
def _opened(path: Path, limits: EventLimits) -> Iterator[TextIO]:
    try:
        if not zipfile.is_zipfile(path):
            with path.open(encoding="ascii") as file:
                yield file
            return
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.lower().endswith(".txt")]
            if len(names) != 1:
                raise CrossdraftError(f"{path} holds {len(names)} text files; a recording holds exactly one.")
            entry = archive.getinfo(names[0])
            limits.check_packing(path, entry.compress_size, entry.file_size)
            with archive.open(names[0]) as raw, io.TextIOWrapper(raw, encoding="ascii") as file:
                yield file
    except UnicodeDecodeError as error:
        raise CrossdraftError(f"{path} is not a text file; give its true format.") from error
    except _DAMAGE as error:
        raise CrossdraftError(f"{path} cannot be read ({error}); it is damaged, so copy it again.") from error


# Errors that the decompressors of a zip may raise on broken bytes.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError)


def _size_and_events(
    file: TextIO, sensor: Sensor | None, path: Path, limits: EventLimits
) -> tuple[Sensor, Iterator[str]]:
    lines = _lines(file, path, limits)
    first = next(lines, "")
    fields = first.split()
    if len(fields) == 2 and all(field.isdecimal() for field in fields):
        return sensor or (int(fields[0]), int(fields[1])), lines
    if not _is_event(fields):
        raise CrossdraftError(f"{path} is no event recording: its first line is not four numbers t x y p.")
    if sensor is None:
        raise CrossdraftError(f'{path} does not begin with a line "width height"; give the sensor size.')
    return sensor, chain([first], lines)


def _is_event(fields: list[str]) -> bool:
    with suppress(ValueError):
        return len([float(field) for field in fields]) == 4
    return False


def _lines(file: TextIO, path: Path, limits: EventLimits) -> Iterator[str]:
    """Yield every line except blank ones and comments; a line above MAX_LINE, as in a hostile zip, is refused."""
    count = 0
    while line := file.readline(MAX_LINE + 1):
        count += 1  # blank lines count, too, as they take work
        limits.check_lines(path, count)
        if len(line) > MAX_LINE:
            raise CrossdraftError(
                f"{path} has a line of more than {MAX_LINE} characters; a line is four numbers t x y p."
            )
        if not line.isspace() and not line.lstrip().startswith("#"):
            yield line


def _table(lines: list[str], path: Path, done: int) -> np.ndarray:
    if not lines:
        return np.empty((0, 4))
    try:
        table = np.loadtxt(lines, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise CrossdraftError(f"{path}: a line after event {done:,} is not four numbers t x y p; mend it.") from error
    if table.shape[1] != 4:
        raise CrossdraftError(f"{path}: lines must be t x y p, four numbers, not {table.shape[1]}.")
    return table
