"""Mutated requests, media and recordings over HTTP: `crossdraft bench serve --fuzz N`.

Each begins as one that is answered; then bytes are flipped, cut, doubled or swapped in its JSON, its clip or its
recording, or a field gets a value of another kind. A server may answer, refuse (4xx) or have no room (503); any other
status, and a server that is not there any more, is a failure.
"""

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, float("nan"), "", "x" * 10_000, [], {}, [[]], {"": {}}, "\x00", "\ud800",
    "../../etc/passwd", "file:///etc/passwd", "http://169.254.169.254/", "data:,", 2**63, "<video>",
    "data:video/mp4;base64,AAAA",
)  # fmt: skip
WAYS = ("json", "fields", "video", "events", "multipart")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A request to send: where to, with which body, and how it was made."""

    path: str
    content: bytes
    headers: Mapping[str, str]
    way: str


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
    json_type = {"Content-Type": "application/json"}
    chat = "/v1/chat/completions"
    if way == "video":
        video, events = mutated(seeds.video, draw), seeds.events
        return Mutant(chat, json.dumps(seeds.body(video, events)).encode(), json_type, way)
    if way == "events":
        body = seeds.body(seeds.video, mutated(seeds.events, draw))
        return Mutant(chat, json.dumps(body).encode(), json_type, way)
    body = seeds.body(b"", b"")
    body["messages"][1]["content"][:2] = []
    if way == "json":
        return Mutant(chat, mutated(json.dumps(body).encode(), draw), json_type, way)
    if way == "fields":
        return Mutant(chat, json.dumps(with_odd_value(body, draw)).encode(), json_type, way)
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp4"\r\n\r\n'
        + seeds.video[:2000]
        + b"\r\n--b--\r\n"
    )
    return Mutant("/v1/files", mutated(form, draw), {"Content-Type": "multipart/form-data; boundary=b"}, way)


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
    if status in (200, 503) or 400 <= status < 500:
        return {200: "answered", 503: "no room"}.get(status, "refused")
    return f"!status {status}"


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
