"""Mutated streams for `/v1/watch`: what a client sends on a WebSocket, as bytes, and how the server takes it."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import cv2
import numpy as np

from crossdraft.bench.serving.process import Connection
from crossdraft.streams.messages import ROUTE, SCHEMA, PushedEvents, PushedFrame, StreamEnd

TEXT, BINARY, CLOSE = 1, 2, 8  # kinds of WebSocket frames
UPGRADED = 101
SILENCE_S = 1.0  # after which a server waits for more; a mutant may say that there is more
STATUSES = {"server_error": 500, "overloaded_error": 503}  # of an error's type; others are refusals
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


def framed(kind: int, payload: bytes) -> bytes:
    """A client's frame, whole, with a mask of zeros (RFC 6455, 5.2)."""
    size = len(payload)
    if size < 126:
        length = struct.pack(">B", 0x80 | size)
    else:
        length = struct.pack(">BH", 0x80 | 126, size) if size < 1 << 16 else struct.pack(">BQ", 0x80 | 127, size)
    return bytes([0x80 | kind]) + length + bytes(4) + payload


def watch_status(port: int, sent: bytes, silence_s: float = SILENCE_S) -> int:
    """The status that a request would have had which ended as this stream did.

    Args:
        port: of a server on loopback.
        sent: after the handshake.
        silence_s: after which the server is hung up on; what it would have said later is not known.

    Raises:
        OSError: the server cannot be reached.
    """
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    with Connection(port) as connection:
        connection.send("GET", ROUTE, headers=upgrade | {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="})
        head = connection.read_some()
        while b"\r\n\r\n" not in head and (part := connection.read_some()):
            head += part
        status = int(head.split(b" ", 2)[1])
        if status != UPGRADED:
            return status
        with suppress(ConnectionError):  # it may hang up in the midst
            connection.send_raw(sent)  # not before: what comes with the handshake is lost
        return status_of(connection.until_silent(silence_s, _closes))


def status_of(received: bytes) -> int:
    """Of what a server sent on a WebSocket: 200, or what an error in it, or its way to close, stands for."""
    found = 200
    for kind, payload in _frames(received):
        if kind == TEXT and (said := json.loads(payload)).get("type") == "error":
            return STATUSES.get(said["error"]["type"], 400)
        if kind == CLOSE and len(payload) >= 2 and (code := struct.unpack(">H", payload[:2])[0]) != 1000:
            found = 500 if code == 1011 else 400
    return found


def _closes(received: bytes) -> bool:
    """Whether the server has said that it closes; it would wait for the same of the client."""
    return any(kind == CLOSE for kind, _ in _frames(received))


def _frames(received: bytes) -> Iterator[tuple[int, bytes]]:
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
