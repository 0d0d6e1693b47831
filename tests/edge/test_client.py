"""The edge's client, of servers that take its connections and cut them."""

import threading
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from crossdraft.edge.client import EdgeClient
from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import DRAWS, ORIGINS, AskFrame, Commit, Done, Resume, Welcome, decode, encode
from crossdraft.engine.request import Origin, Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError

FINGERPRINT = b"f" * 32


@contextmanager
def cutting(answer: tuple[int, ...]):
    """A server that sends one token of the answer over each connection, and then cuts it; and the questions it had."""
    asked: list[AskFrame | Resume] = []

    def handle(socket) -> None:
        decode(socket.recv())
        socket.send(encode(Welcome("m", FINGERPRINT, 100, (1,), (), 8, 0.0)))
        try:
            while not isinstance(frame := decode(socket.recv()), AskFrame | Resume):
                pass
        except ConnectionClosed:
            return
        asked.append(frame)
        committed, length = Committed(frame.session), frame.length if isinstance(frame, Resume) else 0
        committed.add(answer)
        if length < len(answer):
            token, digest = answer[length], committed.digest(length + 1)
            socket.send(encode(Commit(length, digest, (token,), (1,), (ORIGINS.index(Origin.TARGET),), ("a",), 0)))
        elif answer or len(asked) > 20:  # who never gives up gets an empty answer
            socket.send(encode(Done(length, committed.digest(), "stop", b"{}", 1)))

    with serve(handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}", asked
        server.shutdown()
        thread.join()


def ask(address: str):
    with EdgeClient(address, None, "event", FINGERPRINT, patience_s=0.0) as client:
        return client.ask({"model": "m"}, Request("?"), None)


def test_a_server_that_takes_the_connection_and_cuts_it_is_given_up():
    """Once nothing came for so long as it has patience, here not at all: with the second cut."""
    with cutting(()) as (address, asked), pytest.raises(CrossdraftError, match=r"is lost .*; ask again"):
        ask(address)
    assert [type(frame) for frame in asked] == [AskFrame, AskFrame]


def test_an_answer_of_which_something_comes_over_each_connection_is_taken_to_its_end():
    with cutting((5, 6, 7, 8)) as (address, asked):
        answer = ask(address)
    assert (answer.tokens, answer.text, answer.cuts) == ((5, 6, 7, 8), "aaaa", 4)
    assert [frame.length for frame in asked[1:]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("draws", "drawn"),
    [
        ("seeded", Sampling(temperature=1.0, top_k=90, seed=3)),
        ("likeliest", Sampling(temperature=0.0, top_k=90, seed=3)),
        ("own", Sampling(temperature=1.0, top_k=64)),  # what is sent is bounded
    ],
)
def test_an_edge_draws_as_the_cloud_verifies(draws, drawn):
    client = EdgeClient("ws://127.0.0.1:9", None, "event", FINGERPRINT, draft_top_k=64)
    client._welcome = Welcome("m", FINGERPRINT, 100, (1,), (), 8, 0.0, DRAWS.index(draws))
    assert client._drawn(Sampling(temperature=1.0, top_k=90, seed=3)) == drawn
