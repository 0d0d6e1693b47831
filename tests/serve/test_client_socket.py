"""A client that is gone, or does not read, is told apart from an error of ours."""

import asyncio

import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect

from crossdraft.serve import client_socket
from crossdraft.serve.client_socket import ClientSocket


class Wire:
    """What a server has of a connection; once it is full nothing more can be sent."""

    def __init__(self, *messages):
        self.messages, self.sent, self.full = [{"type": "websocket.connect"}, *messages], [], False

    async def receive(self):
        return self.messages.pop(0)

    async def send(self, message):
        if self.full:
            await asyncio.sleep(60)
        self.sent.append(message)


def run(wire: Wire, work):
    async def whole():
        socket = ClientSocket(WebSocket({"type": "websocket"}, wire.receive, wire.send))
        await socket.accept()
        return await work(socket)

    return asyncio.run(whole())


def test_text_and_bytes_are_sent_and_what_comes_is_received():
    wire = Wire({"type": "websocket.receive", "bytes": b"hello"})

    async def work(socket):
        await socket.send("text")
        await socket.send(b"bytes")
        found = await socket.receive()
        await socket.close(1008)
        await socket.close(1001)  # it is closed
        return found

    assert run(wire, work)["bytes"] == b"hello"
    accept, text, data, close = wire.sent
    assert accept["type"] == "websocket.accept"
    assert (text["text"], data["bytes"]) == ("text", b"bytes")
    assert (close["type"], close["code"]) == ("websocket.close", 1008)


def test_a_client_that_is_gone_is_so_to_whoever_looks():
    async def work(socket):
        for _ in range(2):  # starlette answers the second one with a RuntimeError
            with pytest.raises(WebSocketDisconnect):
                await socket.receive()
        await socket.close(1001)
        with pytest.raises(WebSocketDisconnect):
            await socket.send("late")

    run(Wire({"type": "websocket.disconnect", "code": 1006}), work)


def test_a_client_that_does_not_read_is_gone_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(client_socket, "UNREAD_S", 0.05)
    monkeypatch.setattr(client_socket, "CLOSE_S", 0.05)
    wire = Wire()

    async def work(socket):
        wire.full = True
        for data in ("text", b"bytes"):
            with pytest.raises(WebSocketDisconnect):
                await asyncio.wait_for(socket.send(data), 10)
        await asyncio.wait_for(socket.close(1001), 10)

    run(wire, work)
