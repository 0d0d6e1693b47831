"""Bodies of requests: limits on the number of values in one, and on the bytes that each client sends at a time.

Validation, of small bodies on the event loop, costs microseconds and a kilobyte for each wrong value. So values are
counted first, which is a hundred times cheaper.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from pydantic_core import from_json

from crossdraft.serve.errors import ApiError, bad_request, overloaded, too_many
from crossdraft.serve.keys import Client
from crossdraft.serve.schema import ChatRequest

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MOST_VALUES = 1 << 14  # values in a body: members of objects, elements of arrays; 64 MiB could hold 32 million
FEW_COMMAS = 1 << 10  # values are not counted where there are fewer
MOST_QUOTES = 4 * MOST_VALUES + 2  # quotes of MOST_VALUES members whose names and values are strings
MOST_MEMBERS = 1 << 10  # members of one object; `logit_bias` may have as many
INLINE = 1 << 20  # bytes of a body that is parsed on the event loop; larger ones are parsed in a thread
SHARE = 4  # one client may send one part in so many of what all may send


def closing(error: ApiError) -> ApiError:
    """Mark an error about a body that is not read to its end: the connection must be closed."""
    error.headers["Connection"] = "close"
    return error


def too_large(what: str) -> ApiError:
    """Error 413: a body has more than `what`."""
    return closing(ApiError(413, f"The body has more than {what}, the limit; send less.", "body_too_large"))


TOO_MANY = f"{MOST_VALUES:,} values, or {MOST_MEMBERS:,} in one object or array"


class ValueCounter:
    """Counts the values of a JSON body while it arrives, by the commas outside its strings.

    Each value except a container's first follows a comma. Each part is scanned a few times, at memory speed.
    """

    def __init__(self) -> None:
        self._commas = self._quotes = 0
        self._escape = b""  # a backslash at the end of the last part; the character that it escapes is still to come

    def push(self, part: bytes) -> None:
        """Count the values in the next part of the body.

        Raises:
            ApiError: 413, the body has too many values.
        """
        bare = (self._escape + part).replace(rb"\\", b"")
        self._escape = b"\\" if bare.endswith(b"\\") else b""
        bare = bare.removesuffix(b"\\").replace(rb"\"", b"")
        inside, quotes = self._quotes % 2, bare.count(b'"')
        self._quotes += quotes
        if self._quotes <= MOST_QUOTES:  # otherwise it is not split: there may be millions
            self._commas += sum(outside.count(b",") for outside in bare.split(b'"')[inside::2])
        if self._quotes > MOST_QUOTES or self._commas > MOST_VALUES:
            raise too_large(TOO_MANY)


def checked_json(body: bytes) -> object:
    """Parse a JSON body after a check of its number of values.

    Raises:
        ApiError: 413, the body has too many values.
        ValueError: the body is no JSON.
    """
    commas = body.count(b",")
    if commas > MOST_VALUES:
        ValueCounter().push(body)
    value = from_json(body)
    if commas >= FEW_COMMAS:
        check_values(value)
    return value


def check_values(value: object) -> None:
    """Refuse a value that would be expensive to validate.

    Raises:
        ApiError: 413, the value holds too many values.
    """
    left, count = [value], 0
    while left:
        inner = _inner(left.pop())
        count += len(inner)
        if count > MOST_VALUES or len(inner) > MOST_MEMBERS:
            raise too_large(TOO_MANY)
        left.extend(inner)


def _inner(value: object) -> list[Any]:
    """Members or elements of a value; empty if it is no container."""
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())
    return cast(list[Any], value) if isinstance(value, list) else []


def chat_of(body: bytes) -> ChatRequest:
    """Parse a chat request; errors as `validated`."""
    return validated(ChatRequest, body)


def validated(kind: type[M], body: bytes) -> M:
    """Parse a body as a model of `kind`.

    Holding the interpreter's lock for long delays all answers. For a body with a long text `model_validate_json` holds
    it twice as long as the two steps here: it copies the values that the validators of parts are to see.

    Raises:
        ApiError: the body has too many values, or is in an encoding other than UTF-8.
        ValidationError: the body is none.
    """
    try:
        return kind.model_validate(checked_json(body))
    except ValueError:
        check_encoding(body)
        return kind.model_validate_json(body)  # its errors use words of JSON, not of Python


def check_encoding(body: bytes) -> None:
    """Refuse a body that is not UTF-8.

    Raises:
        ApiError: 400, the body is not UTF-8.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise bad_request(
            f"The body is not UTF-8: the byte 0x{body[error.start]:02X} at position {error.start:,} begins no "
            "character; encode the JSON as UTF-8.",
            code="invalid_encoding",
        ) from None


async def parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """Parse a body with `parse`, in a thread if it is large; for a small one starting a thread would take longer."""
    return parse(body) if len(body) < INLINE else await asyncio.to_thread(parse, body)


class BodyLimits:
    """Limits the bytes of the bodies that are held, over all requests and for each client that has a key.

    Args:
        most: largest number of bytes over all clients.
        largest: largest number of bytes of one body; a client may always send one body.
    """

    def __init__(self, most: int, largest: int) -> None:
        self.held, self._most, self._share = 0, most, max(most // SHARE, largest)
        self._clients = Counter[str]()  # bytes of each client
        self._arriving = Counter[tuple[str, str]]()  # incomplete bodies of each client, by kind

    def hold(self, client: Client, size: int) -> None:
        """Count `size` more bytes of a client."""
        self.held += size
        self._clients[client.name] += size

    def check(self, client: Client) -> None:
        """Refuse if more bytes are held than allowed.

        Raises:
            ApiError: 429, this client holds too many bytes; 503, all clients together do.
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
        """Release the bytes of a request that is over."""
        self.held -= size
        self._clients[client.name] -= size
        if not self._clients[client.name]:
            del self._clients[client.name]

    def begin(self, client: Client, kind: str) -> None:
        """Note that a body begins to arrive. Of each kind a client may send as many at a time as it may run requests.

        Raises:
            ApiError: 429, the client is sending that many already.
        """
        if client.concurrent is not None and self._arriving[client.name, kind] >= client.concurrent:
            raise closing(too_many(f"You are sending {client.concurrent} requests, the limit; wait for one to end.", 1))
        self._arriving[client.name, kind] += 1

    def end(self, client: Client, kind: str) -> None:
        """Note that a body is complete, or will never be."""
        self._arriving[client.name, kind] -= 1
        if not self._arriving[client.name, kind]:
            del self._arriving[client.name, kind]
