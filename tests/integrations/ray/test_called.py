"""An application that is called like a function, by somebody who reads slowly or leaves."""

import asyncio

from crossdraft_ray.called import MOST_HELD, called

MESSAGES = 100


class Counting:
    """Sends messages without looking at whether anybody is there, as a file is sent."""

    def __init__(self) -> None:
        self.sent, self.ended = 0, False

    async def __call__(self, scope, receive, send) -> None:
        try:
            for number in range(MESSAGES):
                await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
                self.sent += 1
        finally:
            self.ended = True


async def turns() -> None:
    for _ in range(10 * MESSAGES):
        await asyncio.sleep(0)


def test_an_application_waits_for_who_reads_it():
    async def run() -> None:
        app = Counting()
        messages = called(app, {"type": "http"}, b"")
        assert (await anext(messages))["body"] == b"0"
        await turns()
        assert app.sent <= 1 + MOST_HELD
        rest = [message["body"] async for message in messages]
        assert rest == [b"%d" % number for number in range(1, MESSAGES)]
        assert app.ended

    asyncio.run(run())


def test_what_nobody_reads_any_more_ends_at_once():
    async def run() -> None:
        app = Counting()
        messages = called(app, {"type": "http"}, b"")
        await anext(messages)
        await turns()  # it waits for room
        await messages.aclose()
        assert app.ended
        assert app.sent <= 1 + MOST_HELD

    asyncio.run(run())
