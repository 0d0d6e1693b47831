"""Typed messages as msgpack arrays `[version, kind, field, …]`: how fields are written, and read strictly.

Every field has a type and a limit, ids and numbers travel as packed little-endian bytes, and any other content is
refused with a one-sentence error. Decoding never runs code from a message.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, get_args, get_type_hints

import msgpack
import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError

MOST_ARRAY = 64  # elements of any array of a message


class FrameError(CrossdraftError):
    """A message that is no frame of this version."""


class Codec(Protocol):
    """A codec of a field; `unpack` raises ValueError or TypeError for what `pack` does not write."""

    def pack(self, value: Any) -> Any:
        """Convert a field's value to a type that msgpack writes."""
        ...

    def unpack(self, raw: Any) -> Any:
        """Convert a value that msgpack read to the field's value."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number from 0 to `most`."""

    most: int

    def pack(self, value: int) -> int:
        return value

    def unpack(self, raw: Any) -> int:
        if type(raw) is not int or not 0 <= raw <= self.most:
            raise ValueError(f"is no whole number from 0 to {self.most}")
        return raw


@dataclass(frozen=True)
class Real:
    """A finite number of 8 bytes."""

    def pack(self, value: float) -> float:
        return float(value)

    def unpack(self, raw: Any) -> float:
        if type(raw) is not float or not math.isfinite(raw):
            raise ValueError("is no finite number")
        return raw


@dataclass(frozen=True)
class Text:
    """Text of at most `most` characters."""

    most: int

    def pack(self, value: str) -> str:
        return value[: self.most]

    def unpack(self, raw: Any) -> str:
        if type(raw) is not str or len(raw) > self.most:
            raise ValueError(f"is no text of at most {self.most} characters")
        return raw


@dataclass(frozen=True)
class Blob:
    """From `least` to `most` bytes."""

    least: int
    most: int

    def pack(self, value: bytes) -> bytes:
        return value

    def unpack(self, raw: Any) -> bytes:
        if type(raw) is not bytes or not self.least <= len(raw) <= self.most:
            raise ValueError(f"has not {self.least} to {self.most} bytes")
        return raw


@dataclass(frozen=True)
class Texts:
    """At most `count` texts, each of at most `most` characters."""

    count: int
    most: int

    def pack(self, value: Sequence[str]) -> list[str]:
        return list(value)

    def unpack(self, raw: Any) -> tuple[str, ...]:
        if type(raw) is not tuple or len(raw) > self.count:
            raise ValueError(f"holds not at most {self.count} texts")
        return tuple(map(Text(self.most).unpack, raw))


@dataclass(frozen=True)
class Column:
    """At most `most` numbers of one dtype, as packed bytes; read as a read-only array."""

    kind: np.dtype[Any]
    most: int

    def pack(self, value: NDArray[Any] | Sequence[float]) -> bytes:
        return np.ascontiguousarray(value, self.kind).tobytes()

    def unpack(self, raw: Any) -> Any:
        if type(raw) is not bytes or len(raw) % self.kind.itemsize or len(raw) // self.kind.itemsize > self.most:
            raise ValueError(f"holds not at most {self.most} numbers of {self.kind.itemsize} bytes")
        return np.frombuffer(raw, self.kind)


class Numbers(Column):
    """Numbers as in `Column`, read as a tuple."""

    def unpack(self, raw: Any) -> tuple[Any, ...]:
        return tuple(super().unpack(raw).tolist())


class TypedMessage(Protocol):
    """A frozen dataclass whose fields are annotated with their codec."""

    kind: ClassVar[str]


M = TypeVar("M", bound=TypedMessage)


class Schema(Generic[M]):
    """The messages that two ends send each other.

    Args:
        version: version of the messages; others are refused.
        most: largest number of bytes of a message.
        kinds: classes of the messages.
    """

    def __init__(self, version: int, most: int, kinds: Sequence[type[M]]) -> None:
        self.version, self.most = version, most
        self.codecs = {kind: _codecs(kind) for kind in kinds}
        self.kinds = {kind.kind: kind for kind in kinds}

    def encode(self, message: M) -> bytes:
        """Encode a message for sending.

        Raises:
            FrameError: the message is too long.
        """
        values = [codec.pack(getattr(message, name)) for name, codec in self.codecs[type(message)]]
        packed = cast(bytes, msgpack.packb([self.version, message.kind, *values]))
        if len(packed) > self.most:
            raise FrameError(
                f"A frame of the kind {message.kind} has {len(packed):,} bytes; at most {self.most:,} are sent."
            )
        return packed

    def decode(self, data: object) -> M:
        """Decode a message.

        Raises:
            FrameError: the data is no message, of another version or an unknown kind, or a field has an invalid value.
        """
        if not isinstance(data, bytes) or len(data) > self.most:
            raise FrameError(f"A message is no binary one of at most {self.most:,} bytes; send msgpack frames.")
        try:
            found = msgpack.unpackb(data, use_list=False, max_array_len=MOST_ARRAY, max_map_len=0, max_ext_len=0)
        except (ValueError, msgpack.UnpackException, RecursionError):
            raise FrameError("A message is no msgpack array of a frame; send [version, kind, field, …].") from None
        if not isinstance(found, tuple) or len(found) < 2 or type(found[0]) is not int or type(found[1]) is not str:
            raise FrameError("A message is no msgpack array of a frame; send [version, kind, field, …].")
        version, name, *values = found
        if version != self.version:
            raise FrameError(
                f"The frame is of version {version}, and this end speaks {self.version}; update the older one."
            )
        kind = self.kinds.get(name)
        if kind is None:
            raise FrameError(f"There is no frame of the kind {name[:20]!r}; the kinds are {', '.join(self.kinds)}.")
        codecs = self.codecs[kind]
        if len(values) != len(codecs):
            raise FrameError(f"A frame of the kind {name} has {len(codecs)} fields, not {len(values)}.")
        made: dict[str, Any] = {}
        for (field, codec), raw in zip(codecs, values, strict=True):
            try:
                made[field] = codec.unpack(raw)
            except ValueError as error:
                raise FrameError(f"The field {field} of a frame of the kind {name} {error}.") from None
        return kind(**made)


def _codecs(message: Any) -> tuple[tuple[str, Codec], ...]:
    hints = get_type_hints(message, include_extras=True)
    return tuple((field.name, get_args(hints[field.name])[1]) for field in fields(message))
