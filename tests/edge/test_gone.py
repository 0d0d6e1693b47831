"""Edges that are there, and do not read."""

import asyncio
import json
import secrets
import time
from contextlib import contextmanager, suppress

import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from crossdraft.edge.frames import AskFrame, Pong, Welcome, decode, encode
from tests.edge.conftest import chat
from tests.edge.test_hostile import connected


@pytest.fixture
def unread(monkeypatch):
    """Whatever is sent after the greeting waits until the edge reads, which it does not."""
    send = WebSocket.send_bytes

    async def until_read(socket, data):
        if not isinstance(decode(data), Welcome):
            await asyncio.sleep(60)
        await send(socket, data)

    monkeypatch.setattr(WebSocket, "send_bytes", until_read)


@contextmanager
def asking(running, fingerprint):
    """An edge with a question, on a server that takes but one edge; afterwards there is a place again."""
    with connected(running, fingerprint) as socket:
        socket.send(encode(AskFrame(secrets.token_bytes(16), json.dumps(chat()).encode())))
        yield socket
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with suppress(InvalidStatus), connected(running, fingerprint):
            return
    raise AssertionError("there is no place again")


@pytest.mark.usefixtures("unread")
def test_an_edge_that_is_silent_is_hung_up_on_though_no_ping_can_be_sent(start, fingerprint, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.edge.SILENT_S", 0.3)
    with asking(start(edges=1), fingerprint) as socket, pytest.raises(ConnectionClosed):
        socket.recv(10)
    assert socket.close_code == 1001


@pytest.mark.usefixtures("unread")
def test_an_edge_that_reads_nothing_is_hung_up_on_whatever_it_sends(start, fingerprint, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.client_socket.UNREAD_S", 0.3)
    until = time.monotonic() + 10
    with asking(start(edges=1), fingerprint) as socket, pytest.raises(ConnectionClosed):
        while time.monotonic() < until:
            socket.send(encode(Pong(1.0)))
            time.sleep(0.02)
