"""Mutated streams for `/v1/watch`: what a client sends on a WebSocket, as bytes, and how the server takes it."""

import json
import random
from collections.abc import Callable
from contextlib import suppress

import cv2
import numpy as np

from crossdraft.streams.messages import ROUTE, SCHEMA, PushedEvents, PushedFrame, StreamEnd
from crossdraft_lab.bench.serving.process import Connection
from tests.serve.fuzzing.web_socket import (
    BINARY,
    INTERNAL_ERROR,
    NORMAL,
    TEXT,
    UPGRADED,
    close_code,
    closes,
    framed,
    frames_of,
    upgraded,
)

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
