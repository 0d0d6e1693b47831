"""The slow network is as slow as it says, keeps the order, and cuts."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from crossdraft_lab.bench.edge.proxy import DelayingProxy, Network


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address
        server.shutdown()


def connected(proxy: DelayingProxy) -> socket.socket:
    host, port = proxy.address.removeprefix("ws://").split(":")
    return socket.create_connection((host, int(port)), 10)


def round_trip(line: socket.socket, data: bytes) -> float:
    start, got = time.perf_counter(), b""
    line.sendall(data)
    while len(got) < len(data):
        if not (more := line.recv(1 << 16)):
            raise ConnectionResetError
        got += more
    assert got == data
    return time.perf_counter() - start


def test_a_round_trip_takes_what_it_says(echo):
    with DelayingProxy(echo, Network(0.05, 0.01)) as proxy, connected(proxy) as line:
        times = [round_trip(line, bytes([number]) * 100) for number in range(8)]
    assert all(seconds >= 0.05 for seconds in times)
    assert min(times) < 0.15


def test_bandwidth_bounds_what_passes(echo):
    with DelayingProxy(echo, Network(0.0, 0.0, 1e6)) as proxy, connected(proxy) as line:
        data = bytes(range(256)) * 100  # 25.6 kB each way at 125 kB/s: 0.2 s at least, for they overlap
        assert round_trip(line, data) >= 0.2


def test_a_cut_ends_the_connections_and_new_ones_may_come(echo):
    with DelayingProxy(echo) as proxy:
        with connected(proxy) as line:
            round_trip(line, b"x")
            proxy.cut()
            with pytest.raises(ConnectionError):
                round_trip(line, b"y")
        with connected(proxy) as line:
            proxy.cut_after = 150
            round_trip(line, bytes(100))
            round_trip(line, bytes(100))
            time.sleep(0.1)
            with pytest.raises(ConnectionError):
                round_trip(line, b"y")
        assert proxy.connections == 2
