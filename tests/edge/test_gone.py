"""Edges that are there, and do not read; and errors of ours, which are none of theirs."""

import asyncio
import json
import secrets
import time
from contextlib import contextmanager, suppress

import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from crossdraft.edge.frames import AskFrame, Ping, Pong, Refused, Welcome, decode, encode
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
        socket.recv(30)
    assert socket.close_code == 1001


@pytest.mark.usefixtures("unread")
def test_an_edge_that_reads_nothing_is_hung_up_on_whatever_it_sends(start, fingerprint, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.client_socket.UNREAD_S", 0.3)
    until = time.monotonic() + 10
    with asking(start(edges=1), fingerprint) as socket, pytest.raises(ConnectionClosed):
        while time.monotonic() < until:
            socket.send(encode(Pong(1.0)))
            time.sleep(0.02)


def test_an_error_of_ours_is_logged_and_sent_to_the_edge(start, fingerprint, monkeypatch, caplog):
    """Also one of a kind that a connection raises which is gone, and one in what writes the answer."""

    def fails(*given, **more):
        raise RuntimeError("planted")

    running = start()
    for where in ("crossdraft.serve.edge.read_chat", "crossdraft.serve.edge_sessions.EdgeSession.commit"):
        with monkeypatch.context() as planted, connected(running, fingerprint) as socket:
            planted.setattr(where, fails)
            socket.send(encode(AskFrame(secrets.token_bytes(16), json.dumps(chat()).encode())))
            while isinstance(frame := decode(socket.recv(30)), Ping):
                socket.send(encode(Pong(frame.at)))
            assert isinstance(frame, Refused)
            assert (frame.code, frame.message.split(";")[0]) == ("internal_error", "The server failed on this request")
            with pytest.raises(ConnectionClosed):
                socket.recv(30)
    logged = [one for one in caplog.records if one.exc_info and "planted" in str(one.exc_info[1])]
    assert len(logged) == 2
