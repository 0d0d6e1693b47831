"""Messages between an edge and a cloud: msgpack arrays `[version, kind, field, …]`, in binary WebSocket messages.

Decoding is strict; see `codec`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, get_args

import numpy as np

from crossdraft.edge.codec import Blob, FrameError, Numbers, Real, Schema, Text, Texts, Whole
from crossdraft.engine.checks import MOST_NODES

ROUTE = "/v1/edge"
VERSION = 4
FRAME_BYTES = 1 << 20  # most bytes of one message
CHAT_BYTES = 1 << 16  # bytes of a question: media are named in it, or uploaded first
REPORT_BYTES = 1 << 18  # bytes of an answer's figures
SESSION_BYTES = 16
DIGEST_BYTES = 8
MOST_LENGTH = 1 << 20  # tokens of an answer
MOST_ENTRIES = 1 << 17  # entries of the distributions of one frame
MOST_PIECES = 64  # pieces of text in one frame
DRAWS = LIKELIEST, OWN, SEEDED = ("likeliest", "own", "seeded")  # tokens that an edge drafts for a sampled answer
MODES = OFF, HIDDEN, ROUNDS = ("off", "hidden", "rounds")  # when an edge drafts: never, until a commit, always
INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")


Session = Annotated[bytes, Blob(SESSION_BYTES, SESSION_BYTES)]
Digest = Annotated[bytes, Blob(DIGEST_BYTES, DIGEST_BYTES)]
Fingerprint = Annotated[bytes, Blob(32, 32)]
Length = Annotated[int, Whole(MOST_LENGTH)]
Nodes = Annotated[tuple[int, ...], Numbers(INT32, MOST_NODES)]
Tokens = Annotated[tuple[int, ...], Numbers(INT32, 1 << 16)]
Name = Annotated[str, Text(200)]
Flag = Annotated[int, Whole(1)]


@dataclass(frozen=True)
class Hello:
    """Edge: name of its drafter, and a digest of the drafter's vocabulary."""

    kind: ClassVar[str] = "hello"
    drafter: Name
    fingerprint: Fingerprint


@dataclass(frozen=True)
class Welcome:
    """Cloud: the target, its vocabulary, end ids, ids that are no text, and largest number of nodes of a draft.

    Args:
        at: time of the cloud, as in `Ping`: the edge answers with a `Pong`, which gives the round trip.
        draws: tokens to draft for a sampled answer, an index into `DRAWS`: the likeliest tokens; tokens that the edge
            draws, each with its distribution, which the cloud trusts; or the tokens that the request's seed draws, as
            the target does.
    """

    kind: ClassVar[str] = "welcome"
    model: Name
    fingerprint: Fingerprint
    vocabulary: Annotated[int, Whole(1 << 24)]
    eos: Tokens
    reserved: Tokens
    nodes: Annotated[int, Whole(MOST_NODES)]
    at: Annotated[float, Real()]
    draws: Annotated[int, Whole(len(DRAWS) - 1)] = DRAWS.index(LIKELIEST)


@dataclass(frozen=True)
class AskFrame:
    """Edge: a question, as the JSON body of `/v1/chat/completions`; after a cut `Resume` names it by its `session`.

    Args:
        drafts: extent of the edge's drafting: an index into `MODES`.
    """

    kind: ClassVar[str] = "ask"
    session: Session
    chat: Annotated[bytes, Blob(2, CHAT_BYTES)]
    drafts: Annotated[int, Whole(len(MODES) - 1)] = MODES.index(ROUNDS)


@dataclass(frozen=True)
class Resume:
    """Edge, after a lost connection: it has the first `length` tokens, with this digest, and `pieces` text pieces."""

    kind: ClassVar[str] = "resume"
    session: Session
    length: Length
    digest: Digest
    pieces: Length


@dataclass(frozen=True)
class DraftFrame:
    """Edge: a draft after `length` committed tokens with this digest, or further nodes of a draft sent before.

    Args:
        serial: number of the draft; each is larger than the one before.
        start: number of nodes that were sent before; 0 = a new draft.
        tokens, parents, origins: fields of `DraftTree` for these nodes; parents and origins count from its start.
        probs: the drafter's probabilities of the paths; empty if it knows none.
        counts: number of entries of each further distribution.
        ids, values: these entries: the exact distributions that the tokens were drawn from.
        known: number of committed tokens that the edge knew; fewer than `length` in a draft for a possible outcome.
        sent_us: time of sending, in microseconds of the edge's own clock.

    Raises:
        FrameError: the columns differ in length, or there are more distributions than nodes.
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
    sent_us: Annotated[int, Whole(1 << 53)] = 0

    def __post_init__(self) -> None:
        nodes, entries = len(self.tokens), len(self.ids)
        whole = len(self.parents) == nodes and len(self.origins) in (0, nodes) and len(self.probs) in (0, nodes)
        if not whole or not entries == len(self.values) == sum(self.counts) or min(self.counts, default=0) < 0:
            raise FrameError(
                "In a draft's frame nodes and their parents, or distributions and entries, differ in number."
            )
        if len(self.counts) > nodes:  # the memory of a draft is bounded by its nodes
            raise FrameError("A draft's frame has more distributions than nodes.")


@dataclass(frozen=True)
class Commit:
    """Cloud: tokens that were added to the answer after the first `length`, and the digest of the answer with them.

    Args:
        counts, origins, texts: for each piece of text: number of tokens, origin (index into `ORIGINS`), and text.
        wants: number of nodes that the next draft may have; 0 = further drafts do not pay.
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
    """Cloud: the answer is complete, with `length` tokens and this digest; figures as JSON.

    Args:
        drafts: 1 = drafting is expected to pay for the next question over this connection.
    """

    kind: ClassVar[str] = "done"
    length: Length
    digest: Digest
    finish: Name
    report: Annotated[bytes, Blob(2, REPORT_BYTES)]
    drafts: Flag = 1


@dataclass(frozen=True)
class End:
    """Edge: the question is over: the whole answer has come, or it is not wanted any more."""

    kind: ClassVar[str] = "end"


@dataclass(frozen=True)
class Ping:
    """Cloud: check that the edge still answers; `at` is the cloud's own time, which `Pong` returns."""

    kind: ClassVar[str] = "ping"
    at: Annotated[float, Real()]


@dataclass(frozen=True)
class Pong:
    """Edge: the answer to a `Ping`, and to `Welcome`."""

    kind: ClassVar[str] = "pong"
    at: Annotated[float, Real()]


@dataclass(frozen=True)
class Refused:
    """Cloud: the reason, in one sentence, why a question or a connection is refused."""

    kind: ClassVar[str] = "error"
    code: Name
    message: Annotated[str, Text(2000)]


Frame = Hello | Welcome | AskFrame | Resume | DraftFrame | Commit | Done | End | Ping | Pong | Refused
ORIGINS = ("hidden", "drafted", "target")  # names of the origins in `Commit.origins`


def fingerprint_of(vocabulary: Mapping[str, int]) -> bytes:
    """Digest of a vocabulary: both ends must have the same ids for the same tokens."""
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).digest()


SCHEMA = Schema[Frame](VERSION, FRAME_BYTES, get_args(Frame))


def encode(frame: Frame) -> bytes:
    """Encode a frame for sending; errors as `Schema.encode`."""
    return SCHEMA.encode(frame)


def decode(data: object) -> Frame:
    """Decode the frame of a message; errors as `Schema.decode`."""
    return SCHEMA.decode(data)
