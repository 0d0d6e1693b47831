"""EventGPT's `.npy`: a pickled dict of x, y, t, p inside a numpy file, read without running what it contains.

A pickle may call any function on loading. The loader here allows only the rebuilding of numpy arrays.
"""

import io
import math
import pickle
import pickletools
import re
import struct
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import ArrayLike, NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.random_access import Recording, Times, chunks_of
from crossdraft.events.stream import WRAP_EDGE_US, Columns, Events, Sensor, Window, unwrap_time
from crossdraft.files import atomic_path

EVENTGPT_SENSOR = (640, 480)  # DSEC's, on which EventGPT was trained
MAX_OPERATIONS = 100_000  # operations of a pickle
COLUMNS = {"t": "<i8", "x": "<u2", "y": "<u2", "p": "|u1"}
SCANNED_EVENTS = 1 << 18  # values compared in one step: 6 MB


def read_eventgpt(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS, unit: str | None = None
) -> Iterator[Events]:
    """Yield the events of an EventGPT `.npy`; a wrapped 16- or 32-bit time is corrected.

    A structured array with fields x, y, t, p is accepted as well, and only its wanted span is read. The sensor is
    640x480 by default.
    """
    found = _load(path, limits)
    missing = [name for name in "xytp" if name not in found]
    if missing:
        raise CrossdraftError(f"{path} lacks the event columns {', '.join(missing)}; it is no EventGPT recording.")
    x, y, t, p = (_column(found[name], name, path) for name in "xytp")
    if any(len(column) != len(t) for column in (x, y, p)):
        shapes = ", ".join(str(column.shape) for column in (x, y, t, p))
        raise CrossdraftError(f"{path}: the columns x, y, t, p differ in length ({shapes}); the file is damaged.")
    limits.check_scanned(path, len(t))
    times, notes = _clock(t, path, limits)

    def columns(i: int, j: int) -> Columns:
        return x[i:j], y[i:j], times(i, j), p[i:j]

    recording = Recording(len(t), sensor or EVENTGPT_SENSOR, times, columns, notes=notes)
    yield from chunks_of(recording, window, path, limits, unit)


def write_eventgpt_npy(path: str | Path, events: Events) -> None:
    """Write events in the form that EventGPT's own loader reads: x, y uint16, t int64 absolute µs, p uint8."""
    content = {"x": events.x, "y": events.y, "t": events.t, "p": events.p}
    with atomic_path(path) as temporary:
        np.save(temporary, np.array(content, dtype=object), allow_pickle=True)


def column_header(count: int) -> bytes:
    """Header of a `.npy` whose columns follow as plain values: t, x, y, p (`COLUMNS`).

    The array has one row with a field for each column, which `read_eventgpt` maps without reading it: each column is
    contiguous, with the widest numbers first, so that all are aligned.

    Args:
        count: number of values of each column.
    """
    descr = [(name, dtype, (count,)) for name, dtype in COLUMNS.items()]
    file = io.BytesIO()
    npy_format.write_array_header_2_0(file, {"descr": descr, "fortran_order": False, "shape": ()})
    return file.getvalue()


def _clock(t: NDArray[Any], path: Path, limits: EventLimits) -> tuple[Callable[[int, int], Times], tuple[str, ...]]:
    """Return a function for the times of rows [i, j), with overflows corrected, and notes on them."""
    bits = 8 * t.dtype.itemsize
    if t.dtype.kind != "u" or bits == 64:
        return lambda i, j: np.asarray(t[i:j]), ()
    span = 1 << bits
    wraps = find_wraps(t, bits, path, limits)

    def times(i: int, j: int) -> NDArray[np.int64]:
        overflows = np.searchsorted(wraps, np.arange(i, j), side="right")
        return t[i:j].astype(np.int64) + span * overflows

    note = f"Its clock of {bits} bits wrapped {len(wraps)} times, undone; a silence of {span / 1e6:g} s would be lost."
    return times, (note,) if len(wraps) else ()


def find_wraps(t: NDArray[np.unsignedinteger], bits: int, source: object, limits: EventLimits) -> NDArray[np.int64]:
    """Find the rows, rising, directly after each overflow of a counter of `bits` bits; see `unwrap_time`.

    Args:
        t: raw counter values [N]; read part by part.

    Raises:
        CrossdraftError: events out of order, or more overflows than fit into `limits.seconds`.
    """
    found, count = [np.empty(0, np.int64)], 0
    for begin in range(0, len(t), SCANNED_EVENTS):
        first = max(begin - 1, 0)
        edge = WRAP_EDGE_US if bits == 32 else None
        turns = unwrap_time(t[first : begin + SCANNED_EVENTS], bits, source, first, edge) >> bits
        found.append(np.flatnonzero(np.diff(turns)) + first + 1)
        count += len(found[-1])
        limits.check_span(source, (count - 1) * (1 << bits) / 1e6)
    return np.concatenate(found)


def _column(value: object, name: str, path: Path) -> NDArray[Any]:
    column = value if isinstance(value, np.ndarray) else _listed(value)
    if column is None or column.dtype.kind not in "iufb" or column.ndim != 1:
        raise CrossdraftError(f"{path}: column {name} is not a row of numbers; it is no EventGPT recording.")
    return column


def _listed(value: object) -> NDArray[Any] | None:
    """Convert a flat list of numbers to an array; nested lists, which may contain each other, are refused."""
    if not isinstance(value, list | tuple):
        return None
    if not all(isinstance(item, int | float | np.number | np.bool_) for item in value):
        return None
    try:
        return np.asarray(value)
    except OverflowError:
        return None


def _load(path: Path, limits: EventLimits) -> Mapping[str, ArrayLike]:
    """Read the columns by name.

    Raises:
        CrossdraftError: not a numpy file, cut off, with other content, too large a pickle, or a forbidden one.
    """
    try:
        with path.open("rb") as file:
            content = _load_array(file, path, limits)
    except _ForbiddenError as error:
        raise CrossdraftError(f"{path} was refused: its pickle asks for {error}, which no recording needs.") from error
    except _DAMAGE as error:
        reason = " ".join(str(error).split())
        raise CrossdraftError(f"{path} is damaged or was cut off ({reason}); copy it again.") from error
    if content.dtype.names:
        return {name: content[name] for name in content.dtype.names}
    inner = content.item() if content.shape == () else None
    if not isinstance(inner, dict):
        raise CrossdraftError(f"{path} holds an array of shape {content.shape}, not a dict of x, y, t, p.")
    return {key: value.value if isinstance(value, _Array) else value for key, value in inner.items()}


def _load_array(file: BinaryIO, path: Path, limits: EventLimits) -> NDArray[Any]:
    version = npy_format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise CrossdraftError(f"{path} is a numpy file of version {version}; save it again with numpy.save.")
    header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    _, _, dtype = header(file)
    if not dtype.hasobject:
        return npy_format.open_memmap(path, mode="r")  # a file shorter than its header says is refused
    limits.check_whole(path, path.stat().st_size)
    _check_operations(file, path)
    content = _ArrayUnpickler(file).load()
    if not isinstance(content, _Array) or not isinstance(content.value, np.ndarray):
        raise CrossdraftError(f"{path} holds a pickled {type(content).__name__}, not a numpy array.")
    return content.value


def _check_operations(file: BinaryIO, path: Path) -> None:
    """Check a pickle before it is loaded; the file's position is restored.

    A few bytes may request a memo or a list of any size; a recording needs a hundred operations.

    Raises:
        CrossdraftError: too many operations, or a memo too large.
    """
    begin = file.tell()
    for count, (operation, argument, _) in enumerate(pickletools.genops(file)):
        memo = argument if "PUT" in operation.name and isinstance(argument, int) else 0
        if max(count, memo) > MAX_OPERATIONS:
            raise CrossdraftError(
                f"{path} was refused: its pickle has more than {MAX_OPERATIONS:,} operations, which no recording needs."
            )
    file.seek(begin)


class _ForbiddenError(Exception):
    """A pickle asks to call a function that is not allowed; the message names it."""


# Errors that numpy and pickle may raise on broken bytes.
_DAMAGE = (
    pickle.UnpicklingError, tokenize.TokenError, struct.error, ArithmeticError, AttributeError, EOFError, LookupError,
    MemoryError, RecursionError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler for the few names that numpy's own pickles use, for which it substitutes classes of this module.

    None of numpy's functions is called with the file's content: `ndarray` over bytes that pose as objects, or a `dtype`
    whose state hides an object field, would give access to raw pointers.
    """

    def find_class(self, module: str, name: str) -> object:
        allowed = _ALLOWED.get((module.replace("numpy._core", "numpy.core"), name))
        if allowed is None:
            raise _ForbiddenError(" ".join(f"{module}.{name}".split()))
        return allowed


class _Number:
    """Substitute for `numpy.dtype`: plain numbers, or the object that holds the dict."""

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, str) or not _NUMBER.fullmatch(spec):
            raise _ForbiddenError(f"the element type {spec!r:.40}")
        self.spec = spec.lstrip("<>=|")
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        parts: tuple[Any, ...] = tuple(state)
        if len(parts) < 5 or parts[2:5] != (None, None, None) or parts[1] not in ("<", ">", "=", "|"):
            raise _ForbiddenError("an element type with fields")
        self.order = str(parts[1])

    @property
    def is_object(self) -> bool:
        return self.spec.startswith("O")

    @property
    def dtype(self) -> "np.dtype[Any]":
        if self.is_object:
            raise _ForbiddenError("objects in place of numbers")
        return np.dtype(self.order.replace("|", "=") + self.spec)


class _Array:
    """Substitute for an array while it is rebuilt; `value` is the real array."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, number, fortran, data = state
        if not isinstance(number, _Number):
            raise _ForbiddenError("an array without an element type")
        if number.is_object:
            if not isinstance(data, list) or math.prod(shape) != len(data):
                raise _ForbiddenError("an array of objects that are not listed")
            self.value = np.empty(len(data), dtype=object)
            for index, item in enumerate(data):  # one by one: NumPy would convert nested lists
                self.value[index] = item
            self.value = self.value.reshape(shape)
        else:
            self.value = _from_bytes(data, number, shape, "F" if fortran else "C")


class _Call:
    """A function that a pickle may call, but not change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _ForbiddenError("a change of what rebuilds arrays")


def _from_bytes(data: object, number: object, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(data, bytes | bytearray) or not isinstance(number, _Number):
        raise _ForbiddenError("numbers that are not given as bytes")
    return np.frombuffer(data, dtype=number.dtype).reshape(shape, order=order)


def _reconstruct(kind: object, *_: object) -> _Array:
    if kind is not _NDARRAY:
        raise _ForbiddenError("an array of another class")
    return _Array()


def _scalar(number: object, data: object) -> object:
    return _from_bytes(data, number, (1,), "C")[0]


def _frombuffer(data: object, number: object, shape: object, order: object, *_: object) -> _Array:
    array = _Array()
    array.value = _from_bytes(data, number, shape, order)
    return array


def _dtype(spec: object, *_: object) -> _Number:
    return _Number(spec)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Make bytes as protocol 2 does: `_codecs.encode(text, "latin1")`, here without other codecs."""
    if encoding != "latin1":
        raise _ForbiddenError(f"the codec {encoding}")
    return text.encode("latin1")


_NUMBER = re.compile(r"[<>=|]?(?:b1|[iuf][1248]|O8?)")
_NDARRAY = object()  # only used as an argument, never called
_ALLOWED: Mapping[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _Call(_reconstruct),
    ("numpy.core.multiarray", "scalar"): _Call(_scalar),
    ("numpy.core.numeric", "_frombuffer"): _Call(_frombuffer),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Call(_dtype),
    ("_codecs", "encode"): _Call(_latin1),
}
