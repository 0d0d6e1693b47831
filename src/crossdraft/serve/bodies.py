"""Bodies of requests: how many values one may hold before it is validated, and how much each client may send at a time.

Validation, of small bodies on the event loop, costs microseconds and a kilobyte for each value that is wrong. So
values are counted first, which is a hundred times cheaper.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pydantic_core import from_json

from crossdraft.serve.errors import ApiError, overloaded, too_many
from crossdraft.serve.keys import Client
from crossdraft.serve.schema import ChatRequest

T = TypeVar("T")

MOST_COMMAS = 1 << 14  # of a body, texts included; a body of 64 MiB could hold 32 million values
FEW_COMMAS = 1 << 10  # values are not counted where there are fewer
MOST_VALUES = 1 << 12  # of a body: members of objects, elements of arrays
MOST_MEMBERS = 1 << 10  # of one object; `logit_bias` may have as many
INLINE = 1 << 20  # bytes of a body that are parsed on the event loop; more are in a thread
SHARE = 4  # one client sends at most this part of what all may


def closing(error: ApiError) -> ApiError:
    """An error about a body that is not read to its end: nothing can follow on the connection."""
    error.headers["Connection"] = "close"
    return error


def too_large(what: str) -> ApiError:
    """413."""
    return closing(ApiError(413, f"The body has more than {what}, the limit; send less.", "body_too_large"))


def check_commas(count: int) -> None:
    """Refuse a body of so many commas.

    Raises:
        ApiError: 413.
    """
    if count > MOST_COMMAS:
        raise too_large(f"{MOST_COMMAS:,} commas")


def check_values(value: object) -> None:
    """Refuse what would be dear to validate.

    Raises:
        ApiError: 413, it has too many values.
    """
    left, count = [value], 0
    while left:
        inner = _inner(left.pop())
        count += len(inner)
        if count > MOST_VALUES or len(inner) > MOST_MEMBERS:
            raise too_large(f"{MOST_VALUES:,} values, or {MOST_MEMBERS:,} in one object or array")
        left.extend(inner)


def _inner(value: object) -> list[Any]:
    """The members or elements of a value."""
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())
    return cast(list[Any], value) if isinstance(value, list) else []


def chat_of(body: bytes) -> ChatRequest:
    """A chat request.

    Who holds the interpreter's lock for long holds all answers up. Of a body with a long text `model_validate_json`
    does so for twice as long as what is done here: it copies what the validators of parts are to see.

    Raises:
        ApiError: it has too many values.
        ValidationError: it is none.
    """
    commas = body.count(b",")
    check_commas(commas)
    try:
        value = from_json(body)
        if commas >= FEW_COMMAS:
            check_values(value)
        return ChatRequest.model_validate(value)
    except ValueError:
        return ChatRequest.model_validate_json(body)  # which says what is wrong in words of JSON, not of Python


async def parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """What `parse` makes of a body, in a thread if that is large; a small one is parsed sooner than a thread begins."""
    return parse(body) if len(body) < INLINE else await asyncio.to_thread(parse, body)


class BodyLimits:
    """Bounds the bodies that are here, of all requests and of each client that has a key.

    Args:
        most: bytes of all.
        largest: bytes of one body; a client may always send one.
    """

    def __init__(self, most: int, largest: int) -> None:
        self.held, self._most, self._share = 0, most, max(most // SHARE, largest)
        self._clients = Counter[str]()  # bytes of each
        self._arriving = Counter[tuple[str, str]]()  # bodies of each client that are not whole, by kind

    def hold(self, client: Client, size: int) -> None:
        """So many bytes more have come."""
        self.held += size
        self._clients[client.name] += size

    def check(self, client: Client) -> None:
        """Whether what is held may be.

        Raises:
            ApiError: 429, this client sends too much; 503, all do.
        """
        if client.name and self._clients[client.name] > self._share:
            raise closing(
                too_many(f"You are sending more than {self._share:,} bytes, the limit; wait for a request to end.", 1)
            )
        if self.held > self._most:
            raise closing(
                overloaded("As much is being sent as the server holds at a time; ask again later.", "bodies_full")
            )

    def release(self, client: Client, size: int) -> None:
        """A request is over."""
        self.held -= size
        self._clients[client.name] -= size
        if not self._clients[client.name]:
            del self._clients[client.name]

    def begin(self, client: Client, kind: str) -> None:
        """A body begins to arrive. Of each kind a client may be sending as many as it may have requests running.

        Raises:
            ApiError: 429, it is sending as many.
        """
        if client.concurrent is not None and self._arriving[client.name, kind] >= client.concurrent:
            raise closing(too_many(f"You are sending {client.concurrent} requests, the limit; wait for one to end.", 1))
        self._arriving[client.name, kind] += 1

    def end(self, client: Client, kind: str) -> None:
        """A body is whole, or will never be."""
        self._arriving[client.name, kind] -= 1
        if not self._arriving[client.name, kind]:
            del self._arriving[client.name, kind]
