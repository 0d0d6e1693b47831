"""What is written together is sent together; who does not read is hung up on, and whose handshake fails."""

import asyncio
import socket
import ssl
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
import trustme
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from crossdraft.serve import connections as network_module
from crossdraft.serve.connections import RESERVE, HandshakeProtocol, JoinedWrites
from tests.serve.conftest import settings
from tests.serve.test_security import closed, reaches


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
            connection.settimeout(20)
            ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            connection.sendall(ask)
            assert connection.recv(1) == b"H"  # and no more
            connection.settimeout(1)
            with suppress(OSError):  # nobody reads requests while the answers are not read
                connection.sendall(2000 * ask)
            until = time.monotonic() + 20
            while network.server_state.connections and time.monotonic() < until:
                time.sleep(0.01)
            assert not network.server_state.connections
    finally:
        runner.stop(*started)
        (media_root / "big.mp4").unlink()


UPGRADE = (
    "GET /v1/watch HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
UNREADABLE = [  # by websockets, which h11 takes
    ("X-A: " + "a" * 9000 + "\r\n", 431),
    ("".join(f"X-{number}: 1\r\n" for number in range(140)), 431),
    ("Content-Length: 1\r\n", 400),
]


@pytest.mark.parametrize(("more", "status"), UNREADABLE)
def test_a_handshake_that_cannot_be_read_is_answered_and_hung_up_on(start, more, status):
    server = start(header_seconds=60)
    with server.connection() as connection:
        connection.sendall(f"{UPGRADE}{more}\r\n".encode())
        assert closed(connection).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_server_ends_though_a_handshake_could_not_be_read(runner, media_root, monkeypatch):
    """uvicorn fails to shut such a connection down; here it is uvicorn's own method that does not hang up on it."""
    monkeypatch.setattr(HandshakeProtocol, "data_received", WebSocketsSansIOProtocol.data_received)
    running, network, thread = started = runner.start(settings(media_root=media_root))
    with running.connection() as connection:
        connection.sendall(f"{UPGRADE}{UNREADABLE[0][0]}\r\n".encode())
        held = network.server_state.connections
        assert reaches(lambda: sum(isinstance(one, HandshakeProtocol) for one in held), 1)
        runner.stop(*started)
    assert not thread.is_alive()
    assert not held


def test_a_handshake_that_nobody_answers_is_hung_up_on(runner, media_root):
    """Until it is open a WebSocket is counted nowhere: it must not stay so."""
    running, network, _ = started = runner.start(settings(media_root=media_root, header_seconds=0.3))
    asked = []

    async def says_nothing(scope, receive, send):
        asked.append(scope["type"])
        await asyncio.Event().wait()

    network.config.loaded_app = says_nothing
    try:
        with running.connection() as connection:
            connection.sendall(f"{UPGRADE}\r\n".encode())
            assert closed(connection) == b""
    finally:
        runner.stop(*started)
    assert asked == ["websocket"]


@contextmanager
def silent(server, count: int):
    """Connections that say nothing."""
    with ExitStack() as held:
        yield [held.enter_context(server.connection()) for _ in range(count)]


def test_silent_connections_beyond_the_reserve_are_closed_at_once(runner, media_root):
    """And those in it soon: a probe finds room again long before the deadline of the others."""
    running, network, _ = started = runner.start(settings(media_root=media_root, connections=4, header_seconds=600))
    try:
        with silent(running, 4 + RESERVE) as held, silent(running, 3) as more:
            assert [closed(one) for one in more] == [b""] * 3
            assert [closed(one) for one in held[4:]] == [b""] * RESERVE
            assert reaches(lambda: len(network.server_state.connections), 4)
            assert httpx.get(f"{running.url}/health").status_code == 200
            assert httpx.get(f"{running.url}/v1/models").status_code == 503
    finally:
        runner.stop(*started)


def test_connections_count_before_a_tls_handshake(start, tmp_path):
    """uvicorn hears of a connection only after it."""
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.configure_trust(trusting)
    server = start(tls_cert=tmp_path / "server.pem", header_seconds=600, connections=2, edges=1, streams=1)
    with silent(server, 4 + RESERVE) as held, silent(server, 3) as more:
        assert [closed(one) for one in more] == [b""] * 3
        for one in held[:4]:
            one.close()

        def health() -> int:
            with suppress(httpx.TransportError):  # until the server has seen that these are gone
                return httpx.get(f"https://127.0.0.1:{server.address[1]}/health", verify=trusting).status_code
            return 0

        assert reaches(health, 200)
