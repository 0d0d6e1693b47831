"""Streams of `/v1/watch`, and the plainest WebSocket client (RFC 6455), whose frames may be damaged."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import cv2
import numpy as np

from crossdraft.streams.messages import ROUTE, SCHEMA, PushedEvents, PushedFrame, StreamEnd
from crossdraft_lab.bench.serving.process import Connection

TEXT, BINARY, CLOSE = 1, 2, 8  # kinds of frames
NORMAL, GOING_AWAY, INTERNAL_ERROR = 1000, 1001, 1011  # codes of a close
WAITING, UPGRADED = 100, 101  # HTTP's statuses: go on, and: it is a WebSocket now


def upgraded(connection: Connection, route: str) -> int:
    """Ask for a WebSocket; the status, `UPGRADED` if it is one now.

    Raises:
        EOFError: the server hung up.
    """
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    connection.send("GET", route, headers=upgrade | {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="})
    head = connection.read_some()
    while b"\r\n\r\n" not in head and (part := connection.read_some()):
        head += part
    if not head:
        raise EOFError
    return int(head.split(b" ", 2)[1])


def framed(kind: int, payload: bytes) -> bytes:
    """A client's frame, whole, with a mask of zeros (RFC 6455, 5.2)."""
    size = len(payload)
    if size < 126:
        length = struct.pack(">B", 0x80 | size)
    else:
        length = struct.pack(">BH", 0x80 | 126, size) if size < 1 << 16 else struct.pack(">BQ", 0x80 | 127, size)
    return bytes([0x80 | kind]) + length + bytes(4) + payload


def are_whole(sent: bytes) -> bool:
    """True if a client's frames, by the lengths that they say, end where what was sent ends.

    >>> are_whole(framed(BINARY, b"abc") * 2), are_whole(framed(BINARY, b"abc")[:-1])
    (True, False)
    """
    at = 0
    while at + 2 <= len(sent):
        size, masked = sent[at + 1] & 127, sent[at + 1] >> 7
        start = at + {126: 4, 127: 10}.get(size, 2)
        if size > 125:
            size = int.from_bytes(sent[at + 2 : start], "big")
        at = start + 4 * masked + size
    return at == len(sent)


def closes(received: bytes) -> bool:
    """True if the server has said that it closes; it would wait for the same of the client."""
    return any(kind == CLOSE for kind, _ in frames_of(received))


def frames_of(received: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of a server's frames, which have no mask; without one that is cut off."""
    at = 0
    while at + 2 <= len(received):
        kind, size = received[at] & 15, received[at + 1] & 127
        start = at + {126: 4, 127: 10}.get(size, 2)
        if size > 125:
            size = int.from_bytes(received[at + 2 : start], "big")
        if start + size > len(received):
            return
        yield kind, received[start : start + size]
        at = start + size


def close_code(kind: int, payload: bytes) -> int | None:
    """Return the code of a frame that closes with one, else `None`."""
    return struct.unpack(">H", payload[:2])[0] if kind == CLOSE and len(payload) >= 2 else None


STATUSES = {"server_error": 500, "overloaded_error": 503}  # of an error's type; others are refusals
SILENCE_S = 1.0  # after which a server waits for more; a mutant may say that there is more
Change = Callable[[bytes, random.Random], bytes]


def stream(first: bytes, draw: random.Random, changed: Change) -> bytes:
    """A stream of one window in which one message is changed, or its frames on the wire are.

    Args:
        first: its first message, JSON.
        draw: says what is changed.
        changed: changes bytes.
    """
    column = np.arange(8)
    events = PushedEvents(column * 1000, column.astype("<u2"), column.astype("<u2"), (column % 2).astype("u1"))
    image = cv2.imencode(".png", np.full((64, 64, 3), 128, np.uint8))[1].tobytes()
    pushed = [PushedFrame(0.0, image), events, PushedFrame(1.0, image), StreamEnd(1.0)]
    sent = [(TEXT, first), *((BINARY, SCHEMA.encode(one)) for one in pushed)]
    if draw.random() < 0.25:
        return changed(b"".join(framed(kind, payload) for kind, payload in sent), draw)
    at = draw.randrange(len(sent))
    sent[at] = sent[at][0], changed(sent[at][1], draw)
    return b"".join(framed(kind, payload) for kind, payload in sent)


def watch_status(port: int, sent: bytes, silence_s: float = SILENCE_S) -> int:
    """The status that a request would have had which ended as this stream did.

    Args:
        port: of a server on loopback.
        sent: after the handshake.
        silence_s: after which the server is hung up on; what it would have said later is not known.

    Raises:
        OSError: the server cannot be reached.
        EOFError: it hangs up without saying that it closes (1006), as it does where it fails.
    """
    with Connection(port) as connection:
        if (status := upgraded(connection, ROUTE)) != UPGRADED:
            return status
        with suppress(ConnectionError):  # it may hang up in the midst
            connection.send_raw(sent)  # not before: what comes with the handshake is lost
        received = connection.until_silent(silence_s, closes)
        if connection.hung_up and not closes(received):
            raise EOFError
    return status_of(received)


def status_of(received: bytes) -> int:
    """Map what a server sent on a WebSocket to a status: 200, or that of an error in it, or of its way to close."""
    found = 200
    for kind, payload in frames_of(received):
        if kind == TEXT and (said := json.loads(payload)).get("type") == "error":
            return STATUSES.get(said["error"]["type"], 400)
        if (code := close_code(kind, payload)) not in (None, NORMAL):
            found = 500 if code == INTERNAL_ERROR else 400
    return found
