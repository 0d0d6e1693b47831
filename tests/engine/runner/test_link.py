"""A connection to a process that may have stopped: sending never waits."""

import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from crossdraft.engine.runner.link import BACKLOG, Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, Connection]]:
    near, far = Pipe()
    link = Link(near, lambda message: None)
    yield link, far
    far.close()
    link.close()


def in_time(work) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_sending_to_who_has_stopped_does_not_wait_and_all_of_it_arrives_in_order(ends):
    link, far = ends
    array = bytes(range(256)) * 4096

    def send():
        for number in range(3000):
            link.send(("commit", number))
        link.send(("start", "large"), [memoryview(array)])
        link.send(("prompt", "x" * 1_000_000))
        link.send(("end", None))

    in_time(send)
    assert [far.recv() for _ in range(3000)] == [("commit", number) for number in range(3000)]
    assert far.recv() == ("start", "large")
    assert far.recv_bytes() == array
    assert far.recv() == ("prompt", "x" * 1_000_000)
    assert far.recv() == ("end", None)


def test_what_is_never_taken_is_not_kept_without_bound(ends):
    link, _ = ends

    def send():
        with pytest.raises(BlockingIOError):
            for number in range(BACKLOG + 3000):
                link.send(("commit", number))

    in_time(send)


def test_a_small_message_is_sent_at_once(ends):
    link, far = ends
    link.send(("took", 1))
    assert far.poll(0)
    assert far.recv() == ("took", 1)


def test_who_is_gone_is_reported(ends):
    link, far = ends
    far.close()
    with pytest.raises(OSError):  # noqa: PT011 - a broken pipe, or a reset connection
        for _ in range(3):
            link.send(("took", 1))


def test_closing_in_the_midst_of_an_array_ends_its_thread_in_order(ends, monkeypatch):
    link, far = ends
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    link.send(("start", "large"), [memoryview(bytes(8 << 20))])  # more than a connection takes before it is read
    sender = next(thread for thread in threading.enumerate() if thread.name == "drafter-sender")
    far.recv()
    link.close()
    far.close()  # the write that waited returns
    sender.join(60)
    assert not sender.is_alive()
    assert raised == []
