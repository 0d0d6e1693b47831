"""What an edge and a cloud send each other: msgpack arrays `[version, kind, field, …]`, in binary WebSocket messages.

Decoding is strict: every field has a type and a bound, ids and numbers travel as packed little-endian bytes, and
whatever else comes is refused with one sentence. Nothing that is decoded can run code.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Protocol, cast, get_args, get_type_hints

import msgpack
import numpy as np

from crossdraft.engine.checks import MOST_NODES
from crossdraft.errors import CrossdraftError

ROUTE = "/v1/edge"
VERSION = 1
FRAME_BYTES = 1 << 20  # of one message
CHAT_BYTES = 1 << 18  # of a question
SESSION_BYTES = 16
DIGEST_BYTES = 8
MOST_LENGTH = 1 << 20  # tokens of an answer
MOST_ENTRIES = 1 << 17  # of the distributions of one frame
MOST_PIECES = 64  # of text in one frame
MOST_ARRAY = 64  # elements of any array of a frame
MODES = OFF, HIDDEN, ROUNDS = ("off", "hidden", "rounds")  # of drafting: not, until something is committed, on and on
INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")


class FrameError(CrossdraftError):
    """What came is no frame of this version."""


class Codec(Protocol):
    """How a field is written, and read; `unpack` raises ValueError or TypeError of anything else."""

    def pack(self, value: Any) -> Any:
        """As msgpack writes it."""
        ...

    def unpack(self, raw: Any) -> Any:
        """As the frame holds it."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number from 0 to `most`."""

    most: int = MOST_LENGTH

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
    """Text of at most so many characters."""

    most: int

    def pack(self, value: str) -> str:
        return value[: self.most]

    def unpack(self, raw: Any) -> str:
        if type(raw) is not str or len(raw) > self.most:
            raise ValueError(f"is no text of at most {self.most} characters")
        return raw


@dataclass(frozen=True)
class Blob:
    """At least and at most so many bytes."""

    least: int
    most: int

    def pack(self, value: bytes) -> bytes:
        return value

    def unpack(self, raw: Any) -> bytes:
        if type(raw) is not bytes or not self.least <= len(raw) <= self.most:
            raise ValueError(f"has not {self.least} to {self.most} bytes")
        return raw


@dataclass(frozen=True)
class Numbers:
    """Numbers of one kind, at most so many, as packed bytes."""

    kind: np.dtype[Any]
    most: int

    def pack(self, value: Sequence[float]) -> bytes:
        return np.asarray(value, self.kind).tobytes()

    def unpack(self, raw: Any) -> tuple[Any, ...]:
        if type(raw) is not bytes or len(raw) % 4 or len(raw) // 4 > self.most:
            raise ValueError(f"holds not at most {self.most} numbers of 4 bytes")
        return tuple(np.frombuffer(raw, self.kind).tolist())


@dataclass(frozen=True)
class Texts:
    """Texts, at most so many, each of at most so many characters."""

    count: int
    most: int

    def pack(self, value: Sequence[str]) -> list[str]:
        return list(value)

    def unpack(self, raw: Any) -> tuple[str, ...]:
        if type(raw) is not tuple or len(raw) > self.count:
            raise ValueError(f"holds not at most {self.count} texts")
        return tuple(map(Text(self.most).unpack, raw))


Session = Annotated[bytes, Blob(SESSION_BYTES, SESSION_BYTES)]
Digest = Annotated[bytes, Blob(DIGEST_BYTES, DIGEST_BYTES)]
Fingerprint = Annotated[bytes, Blob(32, 32)]
Length = Annotated[int, Whole()]
Nodes = Annotated[tuple[int, ...], Numbers(INT32, MOST_NODES)]
Tokens = Annotated[tuple[int, ...], Numbers(INT32, 1 << 16)]
Name = Annotated[str, Text(200)]


@dataclass(frozen=True)
class Hello:
    """Edge: who drafts, and a digest of the vocabulary that it writes."""

    kind: ClassVar[str] = "hello"
    drafter: Name
    fingerprint: Fingerprint


@dataclass(frozen=True)
class Welcome:
    """Cloud: the target, its vocabulary, ids that end an answer, ids that are no text, and most nodes of a draft."""

    kind: ClassVar[str] = "welcome"
    model: Name
    fingerprint: Fingerprint
    vocabulary: Annotated[int, Whole(1 << 24)]
    eos: Tokens
    reserved: Tokens
    nodes: Annotated[int, Whole(MOST_NODES)]


@dataclass(frozen=True)
class AskFrame:
    """Edge: a question, as the JSON body of `/v1/chat/completions`; the session names it in all that follows.

    Args:
        drafts: how much the edge drafts: an index into `MODES`.
    """

    kind: ClassVar[str] = "ask"
    session: Session
    chat: Annotated[bytes, Blob(2, CHAT_BYTES)]
    drafts: Annotated[int, Whole(len(MODES) - 1)] = MODES.index(ROUNDS)


@dataclass(frozen=True)
class Resume:
    """Edge, after a cut: it knows the answer up to `length` tokens of this digest, and so many pieces of its text."""

    kind: ClassVar[str] = "resume"
    session: Session
    length: Length
    digest: Digest
    pieces: Length


@dataclass(frozen=True)
class DraftFrame:
    """Edge: a draft that follows `length` committed tokens of this digest, or more nodes of one that was sent.

    Args:
        serial: number of the draft; each is larger than the one before.
        start: nodes that were sent before; 0 = a new draft.
        tokens, parents, origins: as in `DraftTree`, of these nodes; parents and origins count from its beginning.
        probs: the drafter's probabilities of the paths; empty where it knows none.
        counts: entries of each further distribution.
        ids, values: these entries: what the tokens were drawn from, to the bit.
        known: committed tokens that the edge knew of; fewer than `length` where it drafted for what may be committed.

    Raises:
        FrameError: its parts differ in number, or there are more distributions than nodes.
    """

    kind: ClassVar[str] = "draft"
    length: Length
    digest: Digest
    serial: Length
    start: Annotated[int, Whole(MOST_NODES)]
    tokens: Nodes
    parents: Nodes
    origins: Nodes = ()
    probs: Annotated[tuple[float, ...], Numbers(FLOAT32, MOST_NODES)] = ()
    counts: Nodes = ()
    ids: Annotated[tuple[int, ...], Numbers(INT32, MOST_ENTRIES)] = ()
    values: Annotated[tuple[float, ...], Numbers(FLOAT32, MOST_ENTRIES)] = ()
    known: Length = 0

    def __post_init__(self) -> None:
        nodes, entries = len(self.tokens), len(self.ids)
        whole = len(self.parents) == nodes and len(self.origins) in (0, nodes) and len(self.probs) in (0, nodes)
        if not whole or not entries == len(self.values) == sum(self.counts) or min(self.counts, default=0) < 0:
            raise FrameError(
                "In a draft's frame nodes and their parents, or distributions and entries, differ in number."
            )
        if len(self.counts) > nodes:  # what is held of a draft is bounded by its nodes
            raise FrameError("A draft's frame has more distributions than nodes.")


@dataclass(frozen=True)
class Commit:
    """Cloud: tokens that were added to the answer after the first `length`; the digest is of all of it then.

    Args:
        counts, origins, texts: of each piece of text: its tokens, who put them there (`ORIGINS`), the text.
        wants: nodes that the next draft may have; 0 = no more drafts are worth their way.
    """

    kind: ClassVar[str] = "commit"
    length: Length
    digest: Digest
    tokens: Tokens
    counts: Nodes
    origins: Nodes
    texts: Annotated[tuple[str, ...], Texts(MOST_PIECES, 1 << 16)]
    wants: Annotated[int, Whole(MOST_NODES)]


@dataclass(frozen=True)
class Done:
    """Cloud: the answer is whole, of so many tokens of this digest; figures as JSON."""

    kind: ClassVar[str] = "done"
    length: Length
    digest: Digest
    finish: Name
    report: Annotated[bytes, Blob(2, CHAT_BYTES)]


@dataclass(frozen=True)
class End:
    """Edge: nothing more of the answer is wanted: all of it is here, or nobody waits for it."""

    kind: ClassVar[str] = "end"


@dataclass(frozen=True)
class Ping:
    """Cloud: is anybody there? `at` is a time of its own, which comes back."""

    kind: ClassVar[str] = "ping"
    at: Annotated[float, Real()]


@dataclass(frozen=True)
class Pong:
    """Edge: the answer to a `Ping`."""

    kind: ClassVar[str] = "pong"
    at: Annotated[float, Real()]


@dataclass(frozen=True)
class Refused:
    """Cloud: what was asked for is not done, in one sentence."""

    kind: ClassVar[str] = "error"
    code: Name
    message: Annotated[str, Text(2000)]


Frame = Hello | Welcome | AskFrame | Resume | DraftFrame | Commit | Done | End | Ping | Pong | Refused
ORIGINS = ("hidden", "drafted", "target")  # in `Commit.origins`


def fingerprint_of(vocabulary: Mapping[str, int]) -> bytes:
    """A digest of a vocabulary: both ends must write the same ids for the same tokens."""
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).digest()


def _codecs(frame: Any) -> tuple[tuple[str, Codec], ...]:
    hints = get_type_hints(frame, include_extras=True)
    return tuple((field.name, get_args(hints[field.name])[1]) for field in fields(frame))


CODECS = {frame: _codecs(frame) for frame in get_args(Frame)}
KINDS = {frame.kind: frame for frame in CODECS}


def encode(frame: Frame) -> bytes:
    """A frame as it is sent.

    Raises:
        FrameError: it is longer than one may be.
    """
    values = [codec.pack(getattr(frame, name)) for name, codec in CODECS[type(frame)]]
    packed = cast(bytes, msgpack.packb([VERSION, frame.kind, *values]))
    if len(packed) > FRAME_BYTES:
        raise FrameError(
            f"A frame of the kind {frame.kind} has {len(packed):,} bytes; at most {FRAME_BYTES:,} are sent."
        )
    return packed


def decode(data: object) -> Frame:
    """The frame of a message.

    Raises:
        FrameError: it is none, of another version, of an unknown kind, or a field is not as it must be.
    """
    if not isinstance(data, bytes) or len(data) > FRAME_BYTES:
        raise FrameError(f"A message is no binary one of at most {FRAME_BYTES:,} bytes; send msgpack frames.")
    try:
        found = msgpack.unpackb(data, use_list=False, max_array_len=MOST_ARRAY, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise FrameError("A message is no msgpack array of a frame; send [version, kind, field, …].") from None
    if not isinstance(found, tuple) or len(found) < 2 or type(found[0]) is not int or type(found[1]) is not str:
        raise FrameError("A message is no msgpack array of a frame; send [version, kind, field, …].")
    version, kind, *values = found
    if version != VERSION:
        raise FrameError(f"The frame is of version {version}, and this end speaks {VERSION}; update the older one.")
    frame = KINDS.get(kind)
    if frame is None:
        raise FrameError(f"There is no frame of the kind {kind[:20]!r}; the kinds are {', '.join(KINDS)}.")
    codecs = CODECS[frame]
    if len(values) != len(codecs):
        raise FrameError(f"A frame of the kind {kind} has {len(codecs)} fields, not {len(values)}.")
    made: dict[str, Any] = {}
    for (name, codec), raw in zip(codecs, values, strict=True):
        try:
            made[name] = codec.unpack(raw)
        except ValueError as error:
            raise FrameError(f"The field {name} of a frame of the kind {kind} {error}.") from None
    return frame(**made)
