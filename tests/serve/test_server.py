"""The network's own: what is written together is sent together; who does not read is hung up on."""

import asyncio
import socket
import time
from contextlib import suppress

import pytest

from crossdraft.serve import server as network_module
from crossdraft.serve.server import JoinedWrites
from tests.serve.conftest import settings


class Recorded:
    """A transport that notes what it is asked for."""

    def __init__(self):
        self.calls = []

    def write(self, data):
        self.calls.append(data)

    def close(self):
        self.calls.append("close")

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return "close" in self.calls


def test_what_is_written_in_one_turn_is_sent_at_once_and_in_order():
    async def run():
        inner = Recorded()
        joined = JoinedWrites(inner, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        assert inner.calls == []
        await asyncio.sleep(0)
        joined.write(b"next")
        await asyncio.sleep(0)
        joined.write(b"last")
        joined.close()
        await asyncio.sleep(0)
        assert joined.is_closing()
        return inner.calls

    assert asyncio.run(run()) == [b"head body", b"next", b"last", "close"]


def test_a_response_comes_in_one_packet(server):
    with server.connection() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = connection.recv(65536)
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert found.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("path", ["/v1/media/content?url=file:big.mp4", "/metrics"])
def test_clients_that_do_not_read_are_hung_up_on(runner, media_root, monkeypatch, path):
    """Else a few of them would hold all connections."""
    monkeypatch.setattr(network_module, "UNREAD_S", 0.5)
    with (media_root / "big.mp4").open("wb") as big:
        big.truncate(64 << 20)
    running, network, _ = started = runner.start(settings(media_root=media_root))
    try:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(running.address)
            connection.settimeout(1)
            ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            connection.sendall(ask)
            assert connection.recv(1) == b"H"  # and no more
            with suppress(OSError):  # nobody reads requests while the answers are not read
                connection.sendall(2000 * ask)
            until = time.monotonic() + 20
            while network.server_state.connections and time.monotonic() < until:
                time.sleep(0.01)
            assert not network.server_state.connections
    finally:
        runner.stop(*started)
        (media_root / "big.mp4").unlink()
