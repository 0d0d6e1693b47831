"""An ASGI application called like a function: a request in, the messages of its response out."""

import asyncio
from collections.abc import AsyncGenerator

from anyio import BrokenResourceError, create_memory_object_stream
from starlette.types import ASGIApp, Message, Scope

MOST_HELD = 4  # messages that wait to be read; the application waits for room


async def called(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[Message]:
    """Yield the messages of a response as they come; closing the generator early counts as a client that left.

    Raises:
        Exception: what the application raises.
    """
    give, take = create_memory_object_stream[Message](MOST_HELD)
    given, gone = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

    async def receive() -> Message:
        if given:
            return given.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        try:
            await give.send(message)
        except BrokenResourceError:  # the response is read no further, so the rest of a file need not be sent
            running.cancel()
            await asyncio.Event().wait()

    async def run() -> None:
        with give:
            await app(scope, receive, send)

    running = asyncio.create_task(run())
    try:
        with take:
            async for message in take:
                yield message
        await running
    finally:
        gone.set()
        await asyncio.wait([running])
