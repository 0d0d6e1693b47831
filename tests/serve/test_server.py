"""The network's own: what is written together is sent together."""

import asyncio

from crossdraft.serve.server import JoinedWrites


class Recorded:
    """A transport that notes what it is asked for."""

    def __init__(self):
        self.calls = []

    def write(self, data):
        self.calls.append(data)

    def close(self):
        self.calls.append("close")

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
