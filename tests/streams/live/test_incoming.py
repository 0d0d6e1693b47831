"""Bytes that come to an address, from one sender at a time."""

import socket
import threading
from contextlib import closing, contextmanager

import pytest

from crossdraft.streams.live.address import LiveAddress
from crossdraft.streams.live.incoming import IncomingBytes
from tests.streams.live.sending import connected


@contextmanager
def incoming(kind, silent_s=30.0):
    """What listens at a port of its own, and the event that stops it."""
    stopped = threading.Event()
    with closing(IncomingBytes(LiveAddress(kind, "127.0.0.1", 0), silent_s, stopped)) as found:
        yield found, stopped


def test_datagrams_of_another_origin_are_ignored_until_it_is_waited_for_anew():
    with incoming("udp") as (found, _), connected("udp", found.port) as first, connected("udp", found.port) as second:
        first(b"one, two")
        assert found.wait()
        second(b"three")
        first(b"four")
        assert [found.read(5), found.read(99), found.read(99)] == [b"one, ", b"two", b"four"]
        first(b"of before")
        assert found.wait()
        second(b"five")
        first(b"six")
        assert [found.read(99), found.read(99)] == [b"of before", b"six"]


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_a_sender_that_is_silent_is_lost_once_and_then_at_its_end(kind):
    with incoming(kind, silent_s=0.05) as (found, stopped), connected(kind, found.port) as send:
        send(b"one")
        assert found.wait()
        assert found.read(99) == b"one"
        with pytest.raises(TimeoutError):
            found.read(99)
        assert found.read(99) == b""
        stopped.set()
        assert not found.wait()


def test_the_end_of_a_connection_is_the_end_of_its_bytes_and_the_next_one_is_read():
    with incoming("tcp") as (found, stopped):
        for text in (b"one", b"two"):
            with connected("tcp", found.port) as send:
                send(text)
                assert found.wait()
            assert [found.read(99), found.read(99)] == [text, b""]
        with connected("tcp", found.port) as send:
            send(b"three")
            assert found.wait()
            stopped.set()
            assert [found.read(99), found.read(99)] == [b"three", b""]


def test_an_address_of_ipv6_and_one_that_is_taken():
    with closing(IncomingBytes(LiveAddress("udp", "::1", 0), 1.0, threading.Event())) as found:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as out:
            out.sendto(b"one", ("::1", found.port))
        assert found.wait()
        with pytest.raises(OSError, match="in use"):
            IncomingBytes(LiveAddress("udp", "::1", found.port), 1.0, threading.Event())
