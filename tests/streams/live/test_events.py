"""Live events: the newest of them on the stream's clock, across chunks, jumps and losses."""

import threading

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events
from crossdraft.streams.live.events import LiveEvents


def chunk(*times_us: int, size: int = 8) -> Events:
    n = len(times_us)
    columns = np.zeros(n, np.uint16), np.arange(n, dtype=np.uint16) % size
    return Events(*columns, np.array(times_us, np.int64), np.ones(n, np.uint8), size, size)


class Camera:
    """A source that sends what the test gives it, each chunk at the moment that the test says."""

    def __init__(self, keep_s: float = 1.0, **options) -> None:
        self.at = 0.0
        self._given, self._news, self._taken = [], threading.Semaphore(0), threading.Semaphore(0)
        self.events = LiveEvents("live:test", self._read, keep_s, now=lambda: self.at, **options)

    def _read(self):
        while True:
            if not self._news.acquire(timeout=0.005):
                yield None
                continue
            item = self._given.pop(0)
            try:
                if isinstance(item, Exception):
                    raise item
                yield item
            finally:
                self._taken.release()

    def send(self, item, at: float) -> None:
        """Send, and wait until it is taken."""
        self.at = at
        self._given.append(item)
        self._news.release()
        assert self._taken.acquire(timeout=10)

    def start(self, item, at: float) -> None:
        self.at = at
        self._given.append(item)
        self._news.release()
        self.events.reader.start()
        assert self._taken.acquire(timeout=10)


@pytest.fixture
def camera(request):
    found = Camera(**getattr(request, "param", {}))
    yield found
    found.events.reader.close()


def test_the_cameras_clock_is_mapped_to_the_streams_by_arrival(camera):
    camera.start(chunk(5_000_000, 5_010_000), at=20.0)  # 5.01 s there is 20 s here
    camera.events.align(19.5)  # the stream's second 0: 4.51 s there
    camera.send(chunk(5_100_000, 5_200_000), at=20.19)
    assert camera.events.between(0.49, 0.6).t.tolist() == [5_000_000, 5_010_000, 5_100_000]
    assert camera.events.between(0.0, 0.4) is None
    found = camera.events.to_json()
    assert (found["offset_s"], found["offset"], found["drift_ppm"]) == (pytest.approx(4.51), "measured", None)


@pytest.mark.parametrize("camera", [{"offset_s": 2.0}], indirect=True)
def test_an_offset_that_is_given_is_between_the_two_cameras_clocks(camera):
    camera.start(chunk(5_000_000, 5_010_000), at=20.0)
    camera.events.align(19.5, 3.0)  # second 0 is 3 s by the frames' clock: 5 s by the camera's
    assert camera.events.between(0.0, 0.01).t.tolist() == [5_000_000]
    assert camera.events.to_json()["offset"] == "given"
    camera.send(chunk(1_000), at=20.1)  # a camera that restarts: no offset was given for this clock
    assert camera.events.to_json()["offset"] == "measured"


@pytest.mark.parametrize("jump", [-4_000_000, 60_000_000])
def test_events_of_before_a_jump_are_never_mixed_with_those_after_it(camera, jump):
    camera.start(chunk(5_000_000, 5_010_000), at=20.0)
    camera.events.align(20.0)
    camera.send(chunk(5_020_000 + jump, 5_030_000 + jump), at=20.1)
    assert camera.events.between(-1.0, 1.0).t.tolist() == [5_020_000 + jump, 5_030_000 + jump]
    found = camera.events.to_json()
    assert found["segments"] == 2
    assert "jumped to" in found["notes"][0]


def test_a_leap_within_a_chunk_begins_a_segment_there(camera):
    camera.start(chunk(5_000_000), at=20.0)
    camera.events.align(20.0)
    camera.send(chunk(5_010_000, 5_020_000, 95_000_000, 95_010_000), at=20.1)
    assert camera.events.between(-1.0, 1.0).t.tolist() == [95_000_000, 95_010_000]


def test_a_silent_camera_and_a_lost_one_that_goes_on_are_no_jump(camera):
    camera.start(chunk(5_000_000), at=20.0)
    camera.events.align(20.0)
    camera.send(chunk(), at=50.0)
    camera.send(CrossdraftError("Garbage came."), at=50.1)
    camera.send(chunk(45_000_000), at=60.0)
    assert camera.events.between(39.0, 41.0).t.tolist() == [45_000_000]
    assert camera.events.to_json()["segments"] == 1
    assert camera.events.reader.status().reconnects == 1


def test_no_old_events_are_given_when_the_signal_is_lost(camera):
    camera.start(chunk(*range(4_000_000, 5_900_000, 1000)), at=20.9)
    camera.events.align(20.0)
    assert [len(camera.events.between(start_s, 1.0)) for start_s in (0.5, -1.0)] == [401, 1900]  # a second more is held
    camera.at = 25.0
    assert camera.events.reader.status().state == "no signal"
    assert camera.events.between(4.0, 5.0) is None


def test_another_sensor_that_comes_back_is_not_mixed_with_the_one_before(camera):
    camera.start(chunk(5_000_000, 5_010_000), at=20.0)
    camera.events.align(20.0)
    camera.send(CrossdraftError("It was unplugged."), at=20.1)
    camera.send(chunk(5_300_000, size=16), at=20.3)
    found = camera.events.between(-1.0, 1.0)
    assert (found.t.tolist(), found.width) == ([5_300_000], 16)


@pytest.mark.parametrize("camera", [{"most": 8}], indirect=True)
def test_beyond_the_most_the_oldest_are_dropped_and_counted(camera):
    camera.start(chunk(*range(5_000_000, 5_000_007)), at=20.0)
    camera.events.align(20.0)
    camera.send(chunk(*range(5_000_007, 5_000_012)), at=20.0)
    camera.send(chunk(*range(5_000_012, 5_000_020)), at=20.0)
    assert camera.events.reader.status().dropped == 12
    assert camera.events.between(-1.0, 1.0).t.tolist() == list(range(5_000_012, 5_000_020))
