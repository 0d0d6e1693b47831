"""Live events from real senders on loopback: EVT words over sockets and pipes, and iniVation's network stream."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.streams.live.read import open_events
from tests.streams.live.test_source import until

HEADER = b"% evt 3.0\n% format EVT3;height=8;width=8\n% end\n"


def words(first_us: int, count: int, step_us: int = 100) -> bytes:
    """EVT3 words of `count` events, one each `step_us`, at x = number % 8 and y = 3."""
    found = []
    for number in range(count):
        time_us = first_us + number * step_us
        found += [0x8000 | time_us >> 12 & 0xFFF, 0x6000 | time_us & 0xFFF, 0x0003, 0x2800 | number % 8]
    return np.array(found, "<u2").tobytes()


@contextmanager
def event_camera():
    """The port of a program that sends 2,000 events a second, as EVT3 words by their time, to whoever connects."""
    over = threading.Event()

    def serve() -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(HEADER)
                start, sent = time.monotonic(), 0
                while not over.wait(0.01):
                    due = int(2000 * (time.monotonic() - start))
                    connection.sendall(words(500 * sent, due - sent, 500))
                    sent = due
        except OSError:  # nobody came, or whoever came is gone
            return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
    thread.join(10)


@contextmanager
def sender(*connections, path=None):
    """A socket whose n-th connection is sent the n-th row of pieces, each when the test lets it go; then it is closed.

    The last connection stays open, silent. Gives its address and a function that lets `count` pieces go.
    """
    family = socket.AF_INET if path is None else socket.AF_UNIX
    gate, over = threading.Semaphore(0), threading.Event()

    def serve() -> None:
        for number, pieces in enumerate(connections):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                for piece in pieces:
                    while not gate.acquire(timeout=0.01):
                        if over.is_set():
                            return
                    connection.sendall(piece)
                if number == len(connections) - 1:
                    over.wait(30)

    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1", 0) if path is None else str(path))
        listener.listen()
        listener.settimeout(30)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        place = f"unix:{path}" if path else f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield place, lambda count=1: gate.release(count)
        finally:
            over.set()
            thread.join(10)


def held(events):
    """All events that are held."""
    events.align(time.perf_counter())
    return events.between(-1e4, 1e4)


def times(events) -> list[int]:
    found = held(events)
    return [] if found is None else found.t.tolist()


@pytest.mark.parametrize("unix", [False, True])
def test_words_come_over_a_socket_in_pieces_of_any_size(tmp_path, monkeypatch, unix):
    data = HEADER + words(5000, 300)
    monkeypatch.setattr("crossdraft.streams.live.read.PIECE", 1)  # byte by byte
    with sender([data], path=tmp_path / "s" if unix else None) as (place, go):
        events = open_events(f"live:evt:{place}", 1.0)
        go()
        events.reader.start()
        until(lambda: len(times(events)) == 199)  # the newest 10 ms are held back: others may come in front of them
        assert times(events) == list(range(5000, 24_900, 100))
        found = held(events)
        assert (found.width, found.height, found.x[:9].tolist(), set(found.y)) == (8, 8, [*range(8), 0], {3})
        assert events.to_json()["notes"] == []
        events.reader.close()


def test_words_without_a_header_are_evt3_with_a_note_or_the_sensor_that_was_named_and_a_header_needs_no_end():
    for header, sensor, notes in ((b"", None, 1), (b"", (8, 8), 0), (HEADER.replace(b"% end\n", b""), None, 0)):
        with sender([header + words(5000, 300)]) as (place, go):
            events = open_events(f"live:evt:{place}", 1.0, sensor=sensor, offset_s=2.0)
            go()
            events.reader.start()
            assert times(events)[0] == 5000
            assert (len(events.to_json()["notes"]), events.to_json()["offset"]) == (notes, "given")
            events.reader.close()


def test_a_camera_that_is_started_anew_begins_a_segment_on_the_same_connection(monkeypatch):
    """As standard input could not be opened again. What is read together with the step back is lost."""
    monkeypatch.setattr("crossdraft.streams.live.read.PIECE", 1)
    with sender([words(500_000, 300), words(5000, 1), words(9000, 300)]) as (place, go):
        events = open_events(f"live:evt:{place}", 1.0, sensor=(8, 8))
        go(3)
        events.reader.start()
        until(lambda: times(events)[:1] == [9000])
        state = events.to_json()
        assert (state["segments"], state["reconnects"], held(events).width) == (2, 0, 8)
        assert any("a new segment began" in note for note in state["notes"])
        events.reader.close()


def test_garbage_ends_the_connection_with_a_sentence_and_it_is_connected_to_again():
    good, bad = HEADER + words(5000, 300), HEADER.replace(b"EVT3", b"EVT9")
    beyond = HEADER + words(40_000, 200) + np.array([0x2FFF, 0x2FFF], "<u2").tobytes() + words(60_000, 200)
    with sender([good], [bad], [beyond, words(90_000, 1)], [HEADER + words(90_000, 300)]) as (place, go):
        events = open_events(f"live:evt:{place}", 1.0)
        events.reader._delays_s = 0.01, 0.02
        go()
        events.reader.start()
        go(4)
        until(lambda: times(events)[-1] == 109_800)
        found = events.to_json()
        events.reader.close()
    assert found["segments"] == 1  # its clock went on
    assert any("EVT9, which is not read" in note for note in found["notes"])
    assert any("outside the 8x8 sensor" in note for note in found["notes"])


def test_a_sensor_too_large_to_be_drawn_is_refused():
    with sender([HEADER.replace(b"8;width=8", b"65535;width=65535") + words(5000, 300)]) as (place, go):
        events = open_events(f"live:evt:{place}", 1.0)
        go()
        with pytest.raises(CrossdraftError, match="a sensor of 65535x65535 has more than"):
            events.reader.start()


@pytest.mark.parametrize("kind", ["evt:tcp", "evt:unix", "tcp"])
def test_a_sender_that_is_not_there_is_one_sentence(tmp_path, kind):
    if kind == "tcp":
        pytest.importorskip("dv_processing")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    place = f":{tmp_path / 'none'}" if kind == "evt:unix" else f"://127.0.0.1:{port}"
    events = open_events(f"live:{kind}{place}", 1.0)
    with pytest.raises(CrossdraftError, match=r"cannot be read \(.*\); start what sends the events first\.$") as caught:
        events.reader.start()
    assert len(str(caught.value)) < 200


def test_standard_input_is_read_to_its_end(monkeypatch):
    ours, theirs = os.pipe()
    monkeypatch.setattr("os.dup", {0: ours}.__getitem__)
    events = open_events("live:evt:-", 1.0)
    os.write(theirs, HEADER + words(5000, 300))
    events.reader.start()
    assert events.reader.status().state == "live"
    os.close(theirs)
    until(lambda: events.reader.status().state == "ended")
    assert len(times(events)) == 300
    assert events.to_json()["reconnects"] == 0


WRITER = """
import sys, time, dv_processing as dv
stream = dv.io.Stream.EventStream(0, "events", "DAVIS", (346, 260))
place = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) == 3 else (sys.argv[1],)
writer = dv.io.NetworkWriter(*place, stream)
print("there", flush=True)
for line in sys.stdin:
    store = dv.EventStore()
    for number in range(1000):
        store.push_back(int(line) + number, number % 346, number % 260, number % 2 == 1)
    writer.writeEvents(store)
"""


@contextmanager
def dv_writer(*place):
    """dv-processing's own writer; gives a function that has it send 1,000 events from a time on."""
    command = [sys.executable, "-c", WRITER, *place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout.readline() == "there\n"
            yield lambda first_us: print(first_us, file=writer.stdin, flush=True)
        finally:
            writer.kill()


@pytest.mark.parametrize("unix", [False, True])
def test_inivations_network_stream_is_read_lost_and_read_again(tmp_path, unix):
    pytest.importorskip("dv_processing")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    place = (str(tmp_path / "dv"),) if unix else ("127.0.0.1", port)
    events = open_events(f"live:unix:{place[0]}" if unix else f"live:tcp://localhost:{port}", 1.0)
    events.reader._delays_s = 0.01, 0.02
    pause, sent = threading.Event(), []

    def pour(send) -> None:
        """Send until it arrives: what is sent before the reader is connected, nobody receives."""
        while not pause.wait(0.05):
            sent.append(1_700_000_000_000_000 + 10_000 * len(sent))
            with suppress(OSError, ValueError):  # the writer is closed
                send(sent[-1])

    with dv_writer(*place) as send:
        threading.Thread(target=pour, args=(send,), daemon=True).start()
        events.reader.start()
        until(lambda: len(times(events)) >= 5000)
        pause.set()
    found = held(events)
    assert (found.width, found.height) == (346, 260)
    first = sent.index(int(found.t[0]))
    assert found.t.tolist() == [one + i for one in sent[first : first + len(found) // 1000] for i in range(1000)]
    assert found.x[:3].tolist() == [0, 1, 2]
    assert found.p[:3].tolist() == [0, 1, 0]
    until(lambda: "has ended" in "".join(events.to_json()["notes"]))
    if unix:
        (tmp_path / "dv").unlink()
    pause.clear()
    with dv_writer(*place) as send:
        threading.Thread(target=pour, args=(send,), daemon=True).start()
        until(lambda: events.reader.status().reconnects == 1)
        pause.set()
    events.reader.close()


def test_a_silent_sender_in_place_of_inivations_stops_nothing():
    pytest.importorskip("dv_processing")
    with sender([b""]) as (place, go):
        events = open_events(f"live:{place}", 1.0)
        go()
        with pytest.raises(CrossdraftError, match="Nothing came from"):
            events.reader.start(0.5)
    assert not events.reader._thread.is_alive()


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CrossdraftError, match=r"install it: pip install dv-processing"):
        open_events("live:dv", 1.0)
