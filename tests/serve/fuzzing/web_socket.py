"""The plainest client's WebSocket (RFC 6455): frames as bytes, which may be damaged before they are sent."""

import struct
from collections.abc import Iterator

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
