"""Mutated requests, media, recordings, streams and edges.

Each begins as one that is answered; then bytes are flipped, cut, doubled or swapped in its JSON, its clip, its
recording, its headers, its query or the frames of its WebSocket, or a field gets a value of another kind. A server may
answer, refuse (4xx), have no room (503) or, of an edge, wait for more; any other status, and a server that hangs up
without a word or is not there any more, is a failure.
"""

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossdraft.edge.frames import fingerprint_of
from crossdraft.load import tokenizer_of
from crossdraft_lab.bench.serving.process import Connection
from tests.serve.fuzzing import edges, streams
from tests.serve.fuzzing.mutations import mutated, with_odd_value
from tests.serve.fuzzing.streams import WAITING

WAYS = ("json", "fields", "video", "events", "multipart", "headers", "query", "websocket", "edge")
ANSWERED = "answered"
ENDS = {200: ANSWERED, 206: ANSWERED, 503: "no room", WAITING: "waiting"}
JSON_TYPE = {"Content-Type": "application/json"}
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp4"\r\n\r\n%s\r\n--b--\r\n'
)
HEADERS = {
    "Authorization": "Bearer cd-0123456789abcdef", "Content-Type": "application/json; charset=utf-8",
    "Origin": "http://localhost", "X-Request-Id": "a-1", "Range": "bytes=0-99", "Accept": "text/event-stream, */*",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Cookie": "a=b; c=d",
}  # fmt: skip
QUERIES = (
    "/v1/media/content?url=file:clip.mp4", "/page/events.png?url=file:clip.h5&seconds=2&frames=8",
    "/v1/models/reference", "/v1/files/file-0123456789abcdef0123456789abcdef/content",
    "/v1/files?limit=10&order=asc", "/v1/batches?limit=10&after=batch_0123456789abcdef0123456789abcdef",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A request to send: where to, with which body, and how it was made.

    Strings are bytes as latin-1 writes them. Of a stream (`websocket`) and of an `edge` the content is what goes on the
    wire after the handshake.
    """

    path: str
    content: bytes
    headers: Mapping[str, str]
    way: str
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Seeds:
    """Data that mutants are made of.

    Args:
        model: the server's.
        video, events: bytes of a clip and of a recording.
        fingerprint: of the target's vocabulary, which an edge must know.
    """

    model: str
    video: bytes
    events: bytes
    fingerprint: bytes

    @classmethod
    def read(cls, model: str, target: str, video: Path, events: Path) -> "Seeds":
        """From files; `target` is the checkpoint's source."""
        vocabulary = tokenizer_of(target).get_vocab()
        return cls(model, video.read_bytes(), events.read_bytes(), fingerprint_of(vocabulary))

    def body(self, video: bytes, events: bytes) -> dict[str, Any]:
        """A request that is answered, if the two are whole."""
        parts: list[dict[str, Any]] = [
            {"type": "video_url", "video_url": {"url": _data("video/mp4", video)}, "uuid": "v"},
            {"type": "event_url", "event_url": {"url": _data("application/x-hdf5", events)}},
            {"type": "text", "text": "What is ahead?"},
        ]
        return {
            "model": self.model,
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": parts}],
            "max_tokens": 2,
            "temperature": 0,
            "stop": ["#"],
            "seed": 1,
        }

    def question(self) -> dict[str, Any]:
        """The same without media."""
        body = self.body(b"", b"")
        body["messages"][1]["content"][:2] = []
        return body


def mutants(seeds: Seeds, count: int, seed: int = 0) -> Iterator[Mutant]:
    """Mutants, the same for the same seed."""
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        yield _mutant(seeds, WAYS[number % len(WAYS)], draw)


def _mutant(seeds: Seeds, way: str, draw: random.Random) -> Mutant:
    match way:
        case "video":
            return _chat(way, json.dumps(seeds.body(mutated(seeds.video, draw), seeds.events)).encode())
        case "events":
            return _chat(way, json.dumps(seeds.body(seeds.video, mutated(seeds.events, draw))).encode())
        case "multipart":
            form = FORM % seeds.video[:2000]
            return Mutant("/v1/files", mutated(form, draw), {"Content-Type": "multipart/form-data; boundary=b"}, way)
        case "query":
            return Mutant("/" + _line(draw.choice(QUERIES)[1:], draw), b"", {}, way, "GET")
        case "websocket" | "edge":
            return _of_socket(seeds, way, draw)
        case _:
            return _of_text(seeds, way, draw)


def _chat(way: str, content: bytes, headers: Mapping[str, str] = JSON_TYPE) -> Mutant:
    return Mutant("/v1/chat/completions", content, headers, way)


def _of_text(seeds: Seeds, way: str, draw: random.Random) -> Mutant:
    """A request without media, of which the JSON, its fields or the headers are others."""
    body = seeds.question()
    if way == "json":
        return _chat(way, mutated(json.dumps(body).encode(), draw))
    if way == "fields":
        return _chat(way, json.dumps(with_odd_value(body, draw)).encode())
    headers = with_odd_header(draw)
    if draw.random() < 0.5:
        return _chat(way, json.dumps(body).encode(), headers)
    return Mutant(draw.choice(QUERIES), b"", headers, way, "GET")


def _of_socket(seeds: Seeds, way: str, draw: random.Random) -> Mutant:
    """A stream, or an edge, as it goes on the wire."""
    if way == "edge":
        asked = edges.edge_frames(seeds.fingerprint, seeds.question(), draw)
        return Mutant(edges.ROUTE, asked, {}, way, "GET")
    return Mutant(streams.ROUTE, _stream(draw), {}, way, "GET")


def _stream(draw: random.Random) -> bytes:
    """A stream, as it goes on the wire, with an odd value in its first message, or mutated somewhere."""
    asked = {"questions": ["What is ahead?"], "max_tokens": 2, "every_ms": 500, "window_ms": 1000, "sensor": [64, 64]}
    if draw.random() < 0.25:
        return streams.stream(json.dumps(with_odd_value(asked, draw)).encode(), draw, lambda given, draw: given)
    return streams.stream(json.dumps(asked).encode(), draw, mutated)


def with_odd_header(draw: random.Random) -> dict[str, str]:
    """Headers of which one's value, and now and then its name, is another."""
    found = dict(HEADERS)
    name = draw.choice([*HEADERS])
    value = found.pop(name)
    found[_line(name, draw) if draw.random() < 0.2 else name] = _line(value, draw)
    return found


def _line(text: str, draw: random.Random) -> str:
    """Mutated, but still within its line: where a head ends is not what is tried here."""
    changed = mutated(text.encode("latin-1"), draw)
    return changed.replace(b"\r", b" ").replace(b"\n", b" ").decode("latin-1")


def outcome(status: int) -> str:
    """Name how a mutant ended: a word; one that begins with "!" is a failure."""
    if status in ENDS or 400 <= status < 500:
        return ENDS.get(status, "refused")
    return f"!status {status}"


def sent_to(port: int, connection: Connection, mutant: Mutant) -> int:
    """Send a mutant to a server on loopback; the status, or what a stream's end stands for.

    Raises:
        OSError, EOFError: it hung up without an answer, or does not hang up.
    """
    if mutant.way == "websocket":
        return streams.watch_status(port, mutant.content)
    if mutant.way == "edge":
        return edges.edge_status(port, mutant.content)
    return connection.request(mutant.method, mutant.path, mutant.content, mutant.headers).status


def run_fuzz(send: Callable[[Mutant], int], seeds: Seeds, count: int, seed: int = 0) -> Counter[str]:
    """Send mutants one after another; how they ended, by way and outcome.

    Args:
        send: sends one and returns the status.
        seeds, count, seed: as `mutants`.
    """
    found = Counter[str]()
    for mutant in mutants(seeds, count, seed):
        found[f"{mutant.way}: {outcome(send(mutant))}"] += 1
    return found


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
