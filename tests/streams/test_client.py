"""The client's end of `/v1/watch`, where the server does what no server of ours would."""

import re
import socket
import threading
from contextlib import contextmanager

import pytest
from websockets.utils import accept_key

from crossdraft.errors import CrossdraftError
from crossdraft.streams.client import WatchClient

CLOSE = b"\x88\x02\x03\xe9"  # going away


@contextmanager
def hanging_up():
    """The address of a server that takes a WebSocket and closes it, in one packet."""

    def serve() -> None:
        with listener.accept()[0] as connection:
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
            (key,) = re.findall(r"(?i)sec-websocket-key: (\S+)", head.decode())
            lines = ("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
            accepted = "\r\n".join((*lines, f"Sec-WebSocket-Accept: {accept_key(key)}", "", ""))
            connection.sendall(accepted.encode() + CLOSE)
            connection.shutdown(socket.SHUT_WR)  # else the client waits seconds for it
            while connection.recv(4096):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def test_a_server_that_hangs_up_at_once_is_one_sentence():
    lost = pytest.raises(CrossdraftError, match=r"is lost .*; connect anew\.$")
    with hanging_up() as address, WatchClient(address) as client, lost:
        client.open({"questions": ["What is ahead?"]})
