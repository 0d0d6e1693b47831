"""Mutated requests, media, recordings and streams: `crossdraft bench serve --fuzz N`.

Each begins as one that is answered; then bytes are flipped, cut, doubled or swapped in its JSON, its clip, its
recording, its headers, its query or the frames of its WebSocket, or a field gets a value of another kind. A server may
answer, refuse (4xx) or have no room (503); any other status, and a server that is not there any more, is a failure.
"""

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossdraft.bench.serving.process import Connection
from crossdraft.bench.serving.streams import stream, watch_status
from crossdraft.streams.messages import ROUTE

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, float("nan"), "", "x" * 10_000, [], {}, [[]], {"": {}}, "\x00", "\ud800",
    "../../etc/passwd", "file:///etc/passwd", "http://169.254.169.254/", "data:,", 2**63, "<video>",
    "data:video/mp4;base64,AAAA",
)  # fmt: skip
WAYS = ("json", "fields", "video", "events", "multipart", "headers", "query", "websocket")
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
    "/v1/files?limit=10&order=asc",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A request to send: where to, with which body, and how it was made.

    Strings are bytes as latin-1 writes them. Of a stream (`websocket`) the content is what goes on the wire after the
    handshake.
    """

    path: str
    content: bytes
    headers: Mapping[str, str]
    way: str
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Seeds:
    """What mutants are made of.

    Args:
        model: the server's.
        video, events: bytes of a clip and of a recording.
    """

    model: str
    video: bytes
    events: bytes

    @classmethod
    def read(cls, model: str, video: Path, events: Path) -> "Seeds":
        """From files."""
        return cls(model, video.read_bytes(), events.read_bytes())

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


def mutants(seeds: Seeds, count: int, seed: int = 0) -> Iterator[Mutant]:
    """Mutants, the same for the same seed."""
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
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
        case "websocket":
            return Mutant(ROUTE, _stream(draw), {}, way, "GET")
        case _:
            return _of_text(seeds, way, draw)


def _chat(way: str, content: bytes, headers: Mapping[str, str] = JSON_TYPE) -> Mutant:
    return Mutant("/v1/chat/completions", content, headers, way)


def _of_text(seeds: Seeds, way: str, draw: random.Random) -> Mutant:
    """A request without media, of which the JSON, its fields or the headers are others."""
    body = seeds.body(b"", b"")
    body["messages"][1]["content"][:2] = []
    if way == "json":
        return _chat(way, mutated(json.dumps(body).encode(), draw))
    if way == "fields":
        return _chat(way, json.dumps(with_odd_value(body, draw)).encode())
    headers = with_odd_header(draw)
    if draw.random() < 0.5:
        return _chat(way, json.dumps(body).encode(), headers)
    return Mutant(draw.choice(QUERIES), b"", headers, way, "GET")


def _stream(draw: random.Random) -> bytes:
    """A stream, as it goes on the wire, with an odd value in its first message, or mutated somewhere."""
    asked = {"questions": ["What is ahead?"], "max_tokens": 2, "every_ms": 500, "window_ms": 1000, "sensor": [64, 64]}
    if draw.random() < 0.25:
        return stream(json.dumps(with_odd_value(asked, draw)).encode(), draw, lambda given, draw: given)
    return stream(json.dumps(asked).encode(), draw, mutated)


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


def mutated(given: bytes, draw: random.Random) -> bytes:
    """Some bytes flipped, a stretch cut out, doubled, overwritten or moved; one to eight times."""
    found = bytearray(given)
    for _ in range(draw.randint(1, 8)):
        if not found:
            break
        at, size = draw.randrange(len(found)), draw.choice((1, 2, 4, 16, 256))
        # Heads and indices are where formats are read from; half of all mutations hit the first 512 bytes.
        at = at if draw.random() < 0.5 else at % min(512, len(found))
        match draw.randrange(6):
            case 0:
                found[at] ^= 1 << draw.randrange(8)
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = found[at : at + size]
            case 3:
                found[at : at + size] = draw.randbytes(min(size, len(found) - at))
            case 4:
                found[at : at + 4] = draw.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
            case _:
                del found[at:]
    return bytes(found)


def with_odd_value(body: Any, draw: random.Random) -> Any:
    """A body in which one value, however deep, is another, or is missing, or has an unknown name beside it."""
    places = list(_places(body))
    holder, key = draw.choice(places)
    match draw.randrange(4):
        case 0 if isinstance(holder, dict):
            holder[draw.choice(("x", "__proto__", "fps", "\u0000"))] = draw.choice(ODD)
        case 1:
            del holder[key]
        case _:
            holder[key] = draw.choice(ODD)
    return body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder and key below a value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def outcome(status: int) -> str:
    """How a mutant ended: a word; one that begins with "!" is a failure."""
    if status in (200, 206, 503) or 400 <= status < 500:
        return {200: "answered", 206: "answered", 503: "no room"}.get(status, "refused")
    return f"!status {status}"


def sent_to(port: int, connection: Connection, mutant: Mutant) -> int:
    """Send a mutant to a server on loopback; the status, or what a stream's end stands for.

    Raises:
        OSError, EOFError: it hung up without an answer.
    """
    if mutant.way == "websocket":
        return watch_status(port, mutant.content)
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
