"""Server-sent events: OpenAI's chunks, and crossdraft's own data in comments, which standard clients ignore."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
SILENT_S = 10.0  # seconds after which a stream that has nothing to say bears a comment: proxies close silent ones
SILENT = b": waiting\n\n"


def data(body: Mapping[str, object]) -> bytes:
    """Encode a chunk as a server-sent event."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def comment(body: Mapping[str, object]) -> bytes:
    """Encode data for crossdraft's own clients as a comment, which other clients must ignore."""
    return b": crossdraft " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """A response whose chunks are sent as they come. A client that goes away ends the iteration at once.

    Args:
        chunks: chunks to send.
        held: resources that are released when the response is over, however it ends, even before the first chunk.
        headers: headers of the response.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes], held: AsyncExitStack, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks, self._held = chunks, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks until all are sent or the client has gone."""
        async with self._held:
            await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Await `work` after the body was read; if the client goes away first, cancel `work` and return `None`."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return None
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
