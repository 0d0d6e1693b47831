"""An ASGI application called like a function: a request in, the messages of its response out."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import ASGIApp, Message, Scope


async def called(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[Message]:
    """The messages of a response, as they come. Closing the generator early is a client that left.

    Raises:
        Exception: what the application raises.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    given, gone = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

    async def receive() -> Message:
        if given:
            return given.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(scope, receive, messages.put)
        finally:
            messages.put_nowait(None)

    running = asyncio.create_task(run())
    try:
        while (message := await messages.get()) is not None:
            yield message
        await running
    finally:
        gone.set()
        await asyncio.wait([running])
