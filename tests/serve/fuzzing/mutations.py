"""Mutations of bytes, and of JSON's values, to see what a server makes of them."""

import random
from collections.abc import Iterator
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, float("nan"), "", "x" * 10_000, [], {}, [[]], {"": {}}, "\x00", "\ud800",
    "../../etc/passwd", "file:///etc/passwd", "http://169.254.169.254/", "data:,", 2**63, "<video>",
    "data:video/mp4;base64,AAAA",
)  # fmt: skip


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
