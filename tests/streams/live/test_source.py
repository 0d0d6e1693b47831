"""The thread that reads a live source: it starts, loses it, comes back, says how it stands, and ends."""

import threading

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.streams.live.source import LiveQueue, LiveReader

QUICK = 0.005, 0.02


def reader(*attempts, take=lambda item, at: None, **options):
    """A reader of a source that behaves so on each attempt, and then sends nothing; its values, an Exception raised."""
    script, waiting = iter(attempts), threading.Event()

    def read():
        for item in next(script, ()):
            if isinstance(item, Exception):
                raise item
            yield item
        if not script.__length_hint__():
            while True:  # as a source that is there and silent
                waiting.wait(0.005)
                yield None

    return LiveReader("live:test", read, take, delays_s=QUICK, **options)


def until(condition):
    """Wait for a condition that another thread makes true."""
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.005)
    pytest.fail("it never came true")


def test_items_are_taken_with_their_moments_and_close_ends_the_thread():
    taken = []
    source = reader([1, None, 2], take=lambda item, at: taken.append((item, at)), now=lambda: 8.0)
    source.start()
    until(lambda: len(taken) == 2)
    assert taken == [(1, 8.0), (2, 8.0)]
    source.close()
    assert not source._thread.is_alive()
    source.close()  # again: nothing happens


@pytest.mark.parametrize("error", [CrossdraftError("It is no stream."), OSError("refused"), RuntimeError("")])
def test_a_source_that_fails_at_first_is_one_sentence(error):
    source = reader([error], [1])
    with pytest.raises(CrossdraftError, match=r"^(It is no stream|live:test cannot be read \(.*\); is it running\?)"):
        source.start()
    assert not source._thread.is_alive()


def test_a_connection_is_closed_before_the_next_one_is_waited_for():
    closed, waited = [], []

    def read():
        try:
            yield "bad"
        finally:
            closed.append(True)

    source = LiveReader("live:test", read, lambda item, at: (_ for _ in ()).throw(CrossdraftError("It is bad.")))
    source.closing.wait = lambda seconds: waited.append([*closed]) or source.closing.set()
    with pytest.raises(CrossdraftError, match="It is bad"):
        source.start()
    assert waited == [[True]]


def test_a_silent_source_and_one_that_hangs_up_are_one_sentence():
    clock = [0.0]
    source = reader([None], now=lambda: clock[0])
    clock[0] = 50.0  # it was made long before
    with pytest.raises(CrossdraftError, match=r"^Nothing came from live:test in 0\.02 s"):
        source.start(0.02)
    assert (source.status().state, source.status().age_s) == ("waiting", None)
    with pytest.raises(CrossdraftError, match=r"^live:test has ended\.$"):
        reader([], [1]).start()


def test_a_lost_source_is_connected_to_again_with_a_note():
    source = reader([1], [CrossdraftError("Garbage came.")], [], [2, 3])
    source.start()
    until(lambda: source.status().received == 3)
    found = source.status()
    source.close()
    assert (found.state, found.reconnects) == ("live", 1)  # three attempts, and it came back once
    assert found.notes == ("live:test has ended.", "Garbage came.")  # each once
    for number in range(18):
        source.note(str(number))
    assert source.status().notes == tuple(map(str, range(2, 18)))


def test_an_item_that_is_refused_ends_the_connection():
    def take(item, at):
        if item == "bad":
            raise CrossdraftError("The item is bad.")

    source = reader(["good", "bad", "never"], ["good"], take=take)
    source.start()
    until(lambda: source.status().reconnects == 1)
    found = source.status()
    source.close()
    assert (found.received, found.notes) == (2, ("The item is bad.",))


def test_the_signal_is_lost_after_the_time_out_and_comes_back():
    clock, gate = [0.0], threading.Semaphore(0)

    def read():
        while True:
            yield 1 if gate.acquire(timeout=0.005) else None

    source = LiveReader("live:test", read, lambda item, at: None, signal_timeout_s=2.0, now=lambda: clock[0])
    assert source.status().state == "waiting"
    gate.release()
    source.start()
    assert source.status().state == "live"
    clock[0] = 2.0
    assert source.status().state == "live"
    clock[0] = 2.5
    assert (source.status().state, source.status().age_s) == ("no signal", 2.5)
    gate.release()
    until(lambda: source.status().received == 2)
    assert source.status().state == "live"
    clock[0] += 0.1234
    assert source.status().to_json()["age_s"] == 0.123
    source.close()


def test_what_cannot_be_opened_again_ends():
    clock = [0.0]
    source = reader([1], [2], once=True, now=lambda: clock[0])
    source.start()
    until(lambda: source.status().state == "ended")
    clock[0] = 60.0  # it has no signal either
    assert (source.status().state, source.status().received) == ("ended", 1)
    source.close()


def test_the_delay_doubles_until_something_comes():
    source, waits = reader([1], [], [], [], [2], [], []), []
    source.closing.wait = lambda seconds: waits.append(seconds) or (len(waits) > 5 and source.closing.set())
    source.start()
    until(lambda: not source._thread.is_alive())
    assert waits == [0.005, 0.01, 0.02, 0.02, 0.005, 0.01]


def test_a_queue_drops_the_oldest_beyond_its_bytes_and_its_time():
    queue = LiveQueue(keep_s=1.0, most_bytes=30)
    assert [queue.put(name, second, 10) for name, second in (("a", 0.0), ("b", 0.1), ("c", 0.2))] == [0, 0, 0]
    assert queue.put("d", 0.3, 10) == 1
    assert queue.take(0) == "b"
    assert queue.put("e", 1.25, 10) == 1  # c is more than a second older
    assert queue.put("f", 1.3, 99) == 2
    assert [queue.take(0), queue.take(0)] == ["f", None]
    assert [queue.put("g", 1.5, 10), queue.put("h", 2.5, 20)] == [0, 0]  # neither a byte nor a second too much
    assert (queue.newest(1.0), queue.newest(1.5)) == (["h"], ["g", "h"])


def test_a_queue_wakes_who_waits_for_an_item():
    queue = LiveQueue(1.0, 100)
    thread = threading.Thread(target=lambda: queue.put("a", 0.0, 1))
    thread.start()
    assert queue.take(10) == "a"
    thread.join()
