"""`/v1/watch` whose client leaves, or does what it may not, while something else is waited for."""

import asyncio
import threading
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest
from starlette.websockets import WebSocketDisconnect

from crossdraft.serve.client_socket import ClientSocket
from crossdraft.streams.messages import SCHEMA, StreamEnd
from tests.serve.test_watch import REPLAY, asked, connected, frame, idle, received


@pytest.fixture
def decoding(server, monkeypatch):
    """Clips take very long to decode; set once one has begun."""
    begun = threading.Event()

    @asynccontextmanager
    async def replayed(*given):
        begun.set()
        await asyncio.sleep(60)
        yield

    monkeypatch.setattr(server.service.media, "replayed", replayed)
    return begun


@pytest.mark.parametrize("early", [0, 1, 3])
def test_a_client_that_leaves_ends_the_decoding_of_its_clip_whatever_it_sent_before(server, decoding, early):
    with connected(server, asked(replay=REPLAY)) as socket:
        assert decoding.wait(10)
        for _ in range(early):
            socket.send(SCHEMA.encode(StreamEnd(0.0)))
        socket.socket.close()  # without a word
    assert idle(server)


def test_a_frame_for_a_stream_that_is_replayed_is_refused_while_its_clip_is_decoded(server, decoding):
    with connected(server, asked(replay=REPLAY)) as socket:
        assert decoding.wait(10)
        socket.send(frame())
        (last,) = received(socket)
    assert "leave replay out" in last["error"]["message"]
    assert idle(server)


def test_the_end_ends_a_replay_that_has_not_begun(server):
    with connected(server, asked(replay=REPLAY | {"speed": 0.02})) as socket:
        socket.send(SCHEMA.encode(StreamEnd(0.0)))
        started, summary = received(socket)
        assert socket.close_code == 1000
    assert (started["type"], summary["type"], summary["windows_answered"]) == ("started", "summary", 0)
    assert idle(server)


def test_an_answer_that_cannot_be_sent_ends_before_its_events_are_let_go(server, monkeypatch):
    order, replayed, astream, send = [], server.service.media.replayed, server.engine.astream, ClientSocket.send

    class Noted:
        def __init__(self, stream):
            self.stream, self.answer = stream, None

        async def __aiter__(self):
            try:
                async with aclosing(aiter(self.stream)) as pieces:
                    async for piece in pieces:
                        yield piece
            finally:
                order.append("answer")

    @asynccontextmanager
    async def noted(*given):
        async with replayed(*given) as found:

            @asynccontextmanager
            async def window(events):
                async with found.window(events) as ready:
                    try:
                        yield ready
                    finally:
                        order.append("events")

            yield replace(found, window=window)

    async def unread(socket, data):
        if '"piece"' in data:
            raise WebSocketDisconnect(1006)
        await send(socket, data)

    monkeypatch.setattr(server.service.media, "replayed", noted)
    monkeypatch.setattr(server.engine, "astream", lambda *given, **more: Noted(astream(*given, **more)))
    monkeypatch.setattr(ClientSocket, "send", unread)
    with connected(server, asked(replay=REPLAY, pieces=True)) as socket:
        assert [one["type"] for one in received(socket)] == ["started"]
    assert idle(server)
    assert order == ["answer", "events"]
