"""EventGPT's `.npy`: a pickled dict of x, y, t, p inside a numpy file, read without running what it contains.

A pickle may call any function on loading. Ours may only rebuild numpy arrays.
"""

import pickle
import struct
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import ArrayLike, NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events, Sensor, Window, unwrap_time
from crossdraft.files import atomic_path

EVENTGPT_SENSOR = (640, 480)  # DSEC's, on which EventGPT was trained


def read_eventgpt(path: Path, sensor: Sensor | None, window: Window) -> Iterator[Events]:
    """The events of an EventGPT `.npy`; a 16- or 32-bit time that has wrapped is put right.

    A structured array with fields x, y, t, p is taken as well. Without `sensor`, 640x480.
    """
    columns = _load(path)
    missing = [name for name in "xytp" if name not in columns]
    if missing:
        raise CrossdraftError(
            f"{path} lacks the event columns {', '.join(missing)}; it is no EventGPT recording."
        )
    x, y, t, p = (_column(columns[name], name, path) for name in "xytp")
    if t.dtype.kind == "u" and t.dtype.itemsize < 8:
        t = unwrap_time(t, 8 * t.dtype.itemsize, path)
    width, height = sensor or EVENTGPT_SENSOR
    yield window.clip(Events.checked(x, y, t, p, width, height, source=path))


def write_eventgpt_npy(path: str | Path, events: Events) -> None:
    """Write what EventGPT's own loader reads: x, y uint16, t int64 absolute µs, p uint8."""
    content = {"x": events.x, "y": events.y, "t": events.t, "p": events.p}
    with atomic_path(path) as temporary:
        np.save(temporary, np.array(content, dtype=object), allow_pickle=True)


def _column(value: object, name: str, path: Path) -> NDArray[Any]:
    column = np.asarray(value)
    if column.dtype.kind not in "iufb" or column.ndim != 1:
        raise CrossdraftError(f"{path}: column {name} is not a row of numbers; it is no EventGPT recording.")
    return column


def _load(path: Path) -> Mapping[str, ArrayLike]:
    """Columns by name.

    Raises:
        CrossdraftError: not a numpy file, cut off, of another content, or holding a forbidden pickle.
    """
    try:
        with path.open("rb") as file:
            content = _load_array(file, path)
    except _ForbiddenError as error:
        raise CrossdraftError(
            f"{path} was refused: its pickle asks for {error}, which no recording needs."
        ) from error
    except _DAMAGE as error:
        reason = " ".join(str(error).split())
        raise CrossdraftError(f"{path} is damaged or was cut off ({reason}); copy it again.") from error
    if content.dtype.names:
        return {name: content[name] for name in content.dtype.names}
    inner = content.item() if content.shape == () else None
    if not isinstance(inner, dict):
        raise CrossdraftError(f"{path} holds an array of shape {content.shape}, not a dict of x, y, t, p.")
    return inner


def _load_array(file: BinaryIO, path: Path) -> NDArray[Any]:
    version = npy_format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise CrossdraftError(f"{path} is a numpy file of version {version}; save it again with numpy.save.")
    header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    _, _, dtype = header(file)
    if dtype.hasobject:
        content = _ArrayUnpickler(file).load()
        if not isinstance(content, np.ndarray):
            raise CrossdraftError(f"{path} holds a pickled {type(content).__name__}, not a numpy array.")
        return content
    file.seek(0)
    return npy_format.read_array(file, allow_pickle=False)


class _ForbiddenError(Exception):
    """A pickle wants to call what it must not; the message names it."""


# What numpy and pickle may raise on broken bytes.
_DAMAGE = (
    pickle.UnpicklingError,
    tokenize.TokenError,
    struct.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the few functions that numpy's own pickles call, under the old and the new module names."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        allowed = _ALLOWED.get((module.replace("numpy._core", "numpy.core"), name))
        if allowed is None:
            raise _ForbiddenError(" ".join(f"{module}.{name}".split()))
        return allowed


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """How protocol 2 spells bytes: `_codecs.encode(text, "latin1")`, here without the other codecs."""
    if encoding != "latin1":
        raise _ForbiddenError(f"the codec {encoding}")
    return text.encode("latin1")


# numpy keeps its rebuilding functions in private modules; a pickle of our own tells which they are today.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_SCALAR: Any = np.float64(0).__reduce__()[0]
_FROM_BUFFER: Any = np.zeros(1).__reduce_ex__(5)[0]
_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}
