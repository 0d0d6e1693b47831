"""Messages of a live source to a server: msgpack arrays `[version, kind, field, …]`, in binary WebSocket messages."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from crossdraft.edge.codec import Blob, Column, FrameError, Real, Schema

ROUTE = "/v1/watch"
VERSION = 1
MESSAGE_BYTES = 8 << 20  # most bytes of one message
MOST_EVENTS = 1 << 19  # most events of one message


@dataclass(frozen=True)
class PushedFrame:
    """A frame of the stream: seconds since it began, and a PNG or JPEG file."""

    kind: ClassVar[str] = "frame"
    time_s: Annotated[float, Real()]
    image: Annotated[bytes, Blob(1, MESSAGE_BYTES)]


@dataclass(frozen=True, eq=False)
class PushedEvents:
    """Events that follow those sent before, and come before the first frame at or after them.

    Args:
        t: µs since the stream began, int64, never falling.
        x, y: uint16.
        p: uint8, 1 brighter, 0 darker.

    Raises:
        FrameError: the columns differ in length.
    """

    kind: ClassVar[str] = "events"
    t: Annotated[NDArray[Any], Column(np.dtype("<i8"), MOST_EVENTS)]
    x: Annotated[NDArray[Any], Column(np.dtype("<u2"), MOST_EVENTS)]
    y: Annotated[NDArray[Any], Column(np.dtype("<u2"), MOST_EVENTS)]
    p: Annotated[NDArray[Any], Column(np.dtype("u1"), MOST_EVENTS)]

    def __post_init__(self) -> None:
        if not len(self.t) == len(self.x) == len(self.y) == len(self.p):
            raise FrameError("The columns t, x, y, p of the events differ in length; send one value of each an event.")


@dataclass(frozen=True)
class StreamEnd:
    """The end of the stream, at this second, up to which its last frame is shown; it also ends what a server reads."""

    kind: ClassVar[str] = "end"
    time_s: Annotated[float, Real()]


Pushed = PushedFrame | PushedEvents | StreamEnd
SCHEMA = Schema[Pushed](VERSION, MESSAGE_BYTES, get_args(Pushed))
