"""Mutated edges for `/v1/edge`: the frames of one question, as bytes, and how the server takes them.

An edge says hello, asks, sends drafts, and asks for what it missed. Of that one thing is changed: bits, the kind or the
size of a field, the version, how often or in which order frames come, how long they claim to be, or what carries them.
"""

import json
import random
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import msgpack

from crossdraft.edge.codec import FrameError
from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import (
    MOST_LENGTH,
    ROUTE,
    SESSION_BYTES,
    VERSION,
    AskFrame,
    Commit,
    Done,
    DraftFrame,
    End,
    Frame,
    Hello,
    Ping,
    Pong,
    Refused,
    Resume,
    Welcome,
    decode,
    encode,
)
from crossdraft.engine.checks import MOST_NODES
from crossdraft_lab.bench.serving.process import Connection
from tests.serve.fuzzing.mutations import mutated, with_odd_value
from tests.serve.fuzzing.streams import (
    BINARY,
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL,
    TEXT,
    UPGRADED,
    WAITING,
    are_whole,
    close_code,
    closes,
    framed,
    frames_of,
    upgraded,
)

HANG_S = 20.0  # in which a server hangs up that is told that nothing more comes
SILENCE_S = 0.3  # after which a server waits for more: several times an answer of so few tokens
TOKENS = 4  # of an answer: rounds enough for drafts to be verified
FULL = frozenset({"503", "overloaded", "queue_full", "edges_full", "media_full", "shutting_down", "cancelled"})
FAILED = frozenset({"500", "501", "internal_error"})
# Values of msgpack that stand where others should.
WRONG: tuple[Any, ...] = (
    None, True, -1, 2**63, 1e308, float("nan"), 0.5, "", "x" * 10_000, b"", b"\xff" * 7, b"\xff" * 4096, [], [[[]]], {},
    {"": {}}, [0] * 100, msgpack.ExtType(5, b"x"), msgpack.Timestamp(1),
)  # fmt: skip
VERSIONS: tuple[Any, ...] = (0, VERSION - 1, VERSION + 1, 2**32, -VERSION, str(VERSION), float(VERSION), None)
NUMBERS = (-1, 0, 1, 4, MOST_NODES, MOST_NODES + 1, MOST_LENGTH, MOST_LENGTH + 1, 2**53, 2**63)
IDS = (-(2**31), -1, 0, 1, 2, 4096, 2**31 - 1)
HUGE = b"\xc6\xc9\xdb\xdd\xdf"  # of msgpack: bytes, an extension, text, an array, a map, of a length of 4 bytes
NO_FRAME = b"\x00"
NESTED = b"\x91" * 5000  # arrays in arrays
LENGTHS = (1 << 20, 1 << 24, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)  # that a frame of the WebSocket claims
KINDS = (0, TEXT, 3, 9, 10, 15)  # of such frames; 3 and 15 mean nothing

Sent = tuple[int, bytes]  # the kind of the WebSocket's frame, and its payload


def edge_frames(fingerprint: bytes, question: dict[str, Any], draw: random.Random) -> bytes:
    """Make the frames that an edge sends of one question, with something changed, as they go on the wire.

    Args:
        fingerprint: of the target's vocabulary.
        question: a body of `/v1/chat/completions`.
        draw: says what is changed, and is drawn from.
    """
    return draw.choice(CHANGES)(whole_edge(fingerprint, question, draw), draw)


def whole_edge(fingerprint: bytes, question: dict[str, Any], draw: random.Random) -> list[Frame]:
    """The frames of an edge that is answered; its drafts are of any tokens."""
    session = draw.randbytes(SESSION_BYTES)
    none = Committed(session).digest()

    def draft(serial: int, start: int, nodes: int) -> DraftFrame:
        tokens = tuple(draw.randrange(3, 4000) for _ in range(nodes))
        parents = tuple(range(start - 1, start + nodes - 1))
        return DraftFrame(0, none, serial, start, tokens, parents, probs=(0.5,) * nodes, sent_us=serial)

    return [
        Hello("event", fingerprint),
        Pong(0.5),
        AskFrame(session, json.dumps(question | {"max_tokens": TOKENS}).encode()),
        draft(1, 0, 4),
        draft(1, 4, 4),
        Resume(session, 0, none, 0),
        draft(2, 0, 8),
    ]


def wire(frames: Sequence[Frame | Sent]) -> bytes:
    """Frames one after another; those of which only bytes are known, too."""
    sent = (one if isinstance(one, tuple) else (BINARY, encode(one)) for one in frames)
    return b"".join(framed(kind, payload) for kind, payload in sent)


def _with(frames: Sequence[Frame], at: int, *others: Frame | Sent) -> bytes:
    """With others in the place of one."""
    return wire([*frames[:at], *others, *frames[at + 1 :]])


def _bits(frames: list[Frame], draw: random.Random) -> bytes:
    """Bits and bytes of one frame."""
    at = draw.randrange(len(frames))
    return _with(frames, at, (BINARY, mutated(encode(frames[at]), draw)))


def _wire(frames: list[Frame], draw: random.Random) -> bytes:
    """The same of all that is sent, headers of the WebSocket's frames included."""
    return mutated(wire(frames), draw)


def _fields(frames: list[Frame], draw: random.Random) -> bytes:
    """A field of another kind, none, one more; or another version."""
    at = draw.randrange(len(frames))
    fields = cast(list[Any], msgpack.unpackb(encode(frames[at])))
    number = draw.randrange(len(fields))
    match draw.randrange(5):
        case 0:
            del fields[number]
        case 1:
            fields.insert(number, draw.choice(WRONG))
        case 2:
            fields[0] = draw.choice(VERSIONS)
        case _:
            fields[number] = draw.choice(WRONG)
    return _with(frames, at, (BINARY, cast(bytes, msgpack.packb(fields))))


def _numbers(frames: list[Frame], draw: random.Random) -> bytes:
    """A draft or a resumption that is well formed, of another number, text or tree."""
    numbered = [(at, frame) for at, frame in enumerate(frames) if isinstance(frame, DraftFrame | Resume)]
    at, frame = draw.choice(numbered)
    if isinstance(frame, Resume):
        named = draw.choice(("length", "pieces", "digest", "session"))
    else:
        named = draw.choice(("length", "serial", "start", "known", "sent_us", "digest", "tokens", "parents", "counts"))
    return _with(frames, at, replace(frame, **_numbered(frame, named, draw)))


def _numbered(frame: DraftFrame | Resume, named: str, draw: random.Random) -> dict[str, Any]:
    match named:
        case "digest" | "session":
            return {named: draw.randbytes(len(getattr(frame, named)))}
        case "tokens" | "parents":
            return {named: tuple(draw.choice(IDS) for _ in getattr(frame, named))}
        case "counts":  # what the tokens were drawn from, which they were not
            values = tuple(draw.choice((0.5, -1.0, float("nan"), float("inf"), 0.0)) for _ in range(4))
            return {"counts": (2, 2), "ids": tuple(draw.choice(IDS) for _ in range(4)), "values": values}
        case _:
            return {named: draw.choice(NUMBERS)}


def _repeated(frames: list[Frame], draw: random.Random) -> bytes:
    """One comes again, and again, after others."""
    at, times = draw.randrange(len(frames)), draw.choice((1, 2, 30))
    later = draw.randint(at + 1, len(frames))
    return wire([*frames[:later], *[frames[at]] * times, *frames[later:]])


def _order(frames: list[Frame], draw: random.Random) -> bytes:
    """One is missing, or too early, or the edge wants nothing more."""
    moved = frames.pop(draw.randrange(len(frames)))
    match draw.randrange(3):
        case 0:
            frames.insert(draw.randint(0, len(frames)), moved)
        case 1:
            frames.insert(draw.randint(1, len(frames)), End())
        case _:
            pass
    return wire(frames)


def _clouds(frames: list[Frame], draw: random.Random) -> bytes:
    """A frame that is the cloud's to send."""
    hello = cast(Hello, frames[0])
    cloud: list[Frame] = [
        Welcome("reference", hello.fingerprint, 4096, (2,), (0,), 32, 0.5),
        Commit(0, bytes(8), (5, 6), (2,), (0,), ("a b",), 8),
        Done(0, bytes(8), "stop", b"{}"),
        Ping(0.5),
        Refused("internal_error", "The edge failed."),
    ]
    frames.insert(draw.randint(0, len(frames)), draw.choice(cloud))
    return wire(frames)


def _lengths(frames: list[Frame], draw: random.Random) -> bytes:
    """Make frames in which something claims to be huge, or nests deeply: of msgpack, or of the WebSocket."""
    at = draw.randrange(len(frames))
    payload = encode(frames[at])
    match draw.randrange(3):
        case 0:
            cut, head = draw.randrange(len(payload)), bytes([draw.choice(HUGE)]) + draw.choice((b"\xff", b"\x7f")) * 4
            return _with(frames, at, (BINARY, payload[:cut] + head + payload[cut:]))
        case 1:
            return _with(frames, at, (BINARY, NESTED))
        case _:
            claimed = bytes([0x80 | BINARY, 0x80 | 127]) + struct.pack(">Q", draw.choice(LENGTHS)) + bytes(4)
            return wire(frames[:at]) + claimed + payload


def _carrier(frames: list[Frame], draw: random.Random) -> bytes:
    """One as text, or in another frame of the WebSocket."""
    at = draw.randrange(len(frames))
    return _with(frames, at, (draw.choice(KINDS), draw.choice((encode(frames[at]), b'{"kind":"hello"}', b""))))


def _question(frames: list[Frame], draw: random.Random) -> bytes:
    """The question has a value of another kind."""
    at = next(at for at, frame in enumerate(frames) if isinstance(frame, AskFrame))
    asked = cast(AskFrame, frames[at])
    odd = json.dumps(with_odd_value(json.loads(asked.chat), draw)).encode()
    return _with(frames, at, replace(asked, chat=odd))


CHANGES: tuple[Callable[[list[Frame], random.Random], bytes], ...] = (
    _bits, _wire, _fields, _numbers, _repeated, _order, _clouds, _lengths, _carrier, _question,
)  # fmt: skip


def edge_status(port: int, sent: bytes, silence_s: float = SILENCE_S) -> int:
    """The status that a request would have had which ended as this edge's did; `WAITING`: the server waits for more.

    A server that has not hung up by then must refuse what is no frame of ours, and hang up once nothing more comes.

    Args:
        port: of a server on loopback.
        sent: after the handshake.
        silence_s: after which that is sent; what the server would have said of the rest is not known.

    Raises:
        TimeoutError: the server hangs.
        EOFError: it hangs up without saying that it closes (1006), as it does where it fails.
        OSError: it cannot be reached.
    """
    with Connection(port) as connection:
        if (status := upgraded(connection, ROUTE)) != UPGRADED:
            return status
        with suppress(ConnectionError):  # it may hang up in the midst
            connection.send_raw(sent)
        until = time.monotonic() + silence_s + HANG_S  # a server that hangs may still ping
        received = connection.until_silent(silence_s, lambda received: _is_over(received) or time.monotonic() > until)
        found = status_of_edge(received)
        if not closes(received):
            if connection.hung_up:
                raise EOFError
            last = _last_words(connection, whole=are_whole(sent))
            found = 500 if status_of_edge(last) == 500 else found
    return found


def _last_words(connection: Connection, *, whole: bool) -> bytes:
    """Collect the server's reply to an invalid frame, and to the end; errors as `edge_status`.

    Args:
        connection: that is open.
        whole: whether the server sees what is sent now; else it waits for the rest of a frame of the WebSocket.
    """
    until = time.monotonic() + HANG_S
    with suppress(ConnectionError):
        connection.send_raw(framed(BINARY, NO_FRAME))
    said = connection.until_silent(HANG_S, lambda said: closes(said) or time.monotonic() > until) if whole else b""
    if whole and not closes(said):
        raise EOFError if connection.hung_up else TimeoutError
    connection.end_sending()
    said += connection.until_silent(HANG_S, lambda _: time.monotonic() > until)
    if not connection.hung_up:
        raise TimeoutError
    return said


def status_of_edge(received: bytes) -> int:
    """Map what a server sent an edge to a status: by its answer, its refusal, or its way to close."""
    found = {WAITING}
    for kind, payload in frames_of(received):
        if kind == BINARY:
            found.add(_said(payload))
        elif kind == TEXT:
            found.add(500)
        elif (code := close_code(kind, payload)) not in (None, NORMAL, GOING_AWAY):
            found.add(500 if code == INTERNAL_ERROR else 400)
    return 500 if 500 in found else max(found)


def _said(payload: bytes) -> int:
    """Map one frame of the cloud to a status; 500 if it is none of ours."""
    try:
        frame = decode(payload)
    except FrameError:
        return 500
    match frame:
        case Done():
            return 200
        case Refused(code):
            return 500 if code in FAILED else 503 if code in FULL else 400
        case _:
            return WAITING


def _is_over(received: bytes) -> bool:
    """True if the question is answered or refused, or the server closes."""
    return closes(received) or any(kind == BINARY and _said(one) != WAITING for kind, one in frames_of(received))
