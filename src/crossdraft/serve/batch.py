"""Lines of a batch: OpenAI's requests in a file, answered several at a time, in the order of the file."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Literal

from pydantic import Field, model_validator
from pydantic_core import from_json, to_json

from crossdraft.errors import CrossdraftError
from crossdraft.serve import chat, completions, responses
from crossdraft.serve.answering import Begin
from crossdraft.serve.bodies import validated
from crossdraft.serve.errors import ApiError, as_api_error, bad_request
from crossdraft.serve.gate import RequestInfo
from crossdraft.serve.keys import Client
from crossdraft.serve.schema import Body
from crossdraft.serve.service import Service

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
ENDPOINTS: dict[Endpoint, Begin] = {
    "/v1/chat/completions": chat.begin,
    "/v1/completions": completions.begin,
    "/v1/responses": responses.begin,
}
BUSY = frozenset({"rate_limit_exceeded", "queue_full", "media_full"})  # errors after which a line is asked again
HELD = 4  # lines that are begun or wait to be written, for each one that may be answered at a time


class BatchLine(Body):
    """A line of a batch."""

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: Endpoint
    body: dict[str, Any]

    @model_validator(mode="after")
    def _whole(self) -> "BatchLine":
        if self.body.get("stream"):
            raise ValueError("stream: a batch's answers come whole; leave it out")
        return self


def lines_of(file: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield the lines of a file that are not blank; of one with more than `most` bytes one byte more than that."""
    while line := file.readline(most + 1):
        part = line
        while not part.endswith(b"\n") and (part := file.readline(most)):
            pass
        if line.strip():
            yield line


def custom_id(line: bytes) -> str | None:
    """The `custom_id` of a line of a batch or of its output; `None` if it has none.

    >>> custom_id(b'{"custom_id": "a"}'), custom_id(b"nonsense")
    ('a', None)
    """
    with suppress(ValueError):
        found = from_json(line)
        given = found.get("custom_id") if isinstance(found, dict) else None
        return given if isinstance(given, str) else None
    return None


def read_line(line: bytes, named: str | None, known: set[str | None], most: int) -> BatchLine | ApiError:
    """Read a line of a batch; an error says why it is none. Its id `named` joins the `known` ones, and must be new."""
    try:
        if len(line) > most:
            raise bad_request(f"The line has more than {most:,} bytes, the limit; send less.", code="line_too_large")
        found = validated(BatchLine, line)
        if named in known:
            raise bad_request("An earlier line has this custom_id; give each its own.", "custom_id", "duplicate_id")
    except (ApiError, ValueError) as error:
        return as_api_error(error)
    else:
        return found
    finally:
        known.add(named)


async def answers(
    service: Service, lines: Iterator[bytes], client: Client, known: set[str | None], parallel: int
) -> AsyncGenerator[dict[str, Any]]:
    """Answer the lines of a batch, `parallel` at a time, and yield a line of the output for each, in their order.

    Args:
        service: the service that answers.
        lines: lines as `lines_of` gives them, read as they are needed.
        client: client whose batch it is.
        known: ids of earlier lines; those of `lines` are added.
        parallel: number of lines that are answered at a time.

    Raises:
        CrossdraftError: the engine has stopped, or the server is about to.
    """
    room, begun = asyncio.Semaphore(parallel), deque[asyncio.Task[dict[str, Any]]]()
    try:
        while (line := await asyncio.to_thread(next, lines, None)) is not None or begun:
            if line is not None:
                read = read_line(line, named := custom_id(line), known, service.settings.body_bytes)
                begun.append(asyncio.create_task(_answered(service, read, named, client, room)))
            if line is None or len(begun) > HELD * parallel:
                yield await begun[0]
                begun.popleft()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


async def _answered(
    service: Service, line: BatchLine | ApiError, named: str | None, client: Client, room: asyncio.Semaphore
) -> dict[str, Any]:
    """Answer one line in OpenAI's form: `error` is of a line that asks nothing, other errors are the endpoint's."""
    asked = RequestInfo(secrets.token_hex(16), client)
    found: dict[str, Any] = {"id": f"batch_req_{asked.request_id}", "custom_id": named}
    if isinstance(line, ApiError):
        return found | {"response": None, "error": {"code": line.code, "message": line.message}}
    async with room:
        status, body = await _asked(service, line, asked)
    return found | {
        "response": {"status_code": status, "request_id": asked.request_id, "body": body}, "error": None
    }  # fmt: skip


async def _asked(service: Service, line: BatchLine, asked: RequestInfo) -> tuple[int, dict[str, object]]:
    """Ask the endpoint of a line until it is not busy; return the status and the body of its response."""
    while True:
        try:
            body = to_json(line.body, inf_nan_mode="constants")
            answering, form = await ENDPOINTS[line.url](service, body, asked)
            return 200, await answering.whole(form)
        except Exception as error:  # noqa: BLE001 - it becomes the response
            refused = as_api_error(error)
        if not service.ready:
            raise CrossdraftError("The engine has stopped, or is about to; begin again.")
        if refused.code not in BUSY:
            service.metrics.failed(refused.status)
            return refused.status, refused.body
        await asyncio.sleep(float(refused.headers["Retry-After"]))
