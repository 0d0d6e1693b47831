"""A live source of frames as the feed of a watch: windows, lost signals, segments, and its end."""

import threading
from collections import deque

import numpy as np
import pytest

from crossdraft.api import Request
from crossdraft.errors import CrossdraftError
from crossdraft.streams import SlidingWindows, StreamWindow, Watch, Windowing
from crossdraft.streams.live.feed import watching
from crossdraft.streams.live.frames import LiveFrame
from crossdraft.streams.live.source import LiveStatus


class Camera:
    """Frames and states in the order of the test: a number is a frame of that second, a word a state."""

    def __init__(self, *script, segments=()) -> None:
        self.script, self.state, self.segments = deque(script), "live", dict(segments)

    def take(self, wait_s):
        if not self.script:
            self.state = "ended"
            return None
        item = self.script.popleft()
        if isinstance(item, str):
            self.state = item
            return None
        self.state = "live"
        segment = sum(item >= begin for begin in self.segments)
        return LiveFrame(float(item), np.full((2, 2, 3), int(item * 10), np.uint8), 0.0, segment)

    def status(self):
        return LiveStatus(self.state, 0.0, 1, 0, 0, ())


class Recorded:
    """A watch's side of a feed, by what was said to it."""

    def __init__(self) -> None:
        self.said, self.watch = [], Watch(lambda request, on_piece: None, [Request("What?")])
        offer, signal = self.watch.offer, self.watch.signal
        self.watch.offer = lambda window: self.said.append(window.end_s - window.due_at) or offer(window)  # due at 0
        self.watch.signal = lambda there: self.said.append(there) or signal(there=there)
        self.closed, close = threading.Event(), self.watch.close
        self.watch.close = lambda error=None: close(error) or self.closed.set()


def fed(camera, **options):
    found = Recorded()
    windows = SlidingWindows(Windowing(0.5, 1.0, 2), newest=True)
    with watching(camera, windows, found.watch, **options):
        assert found.closed.wait(10)
    return found.said, found.watch


def steps(start, end):
    return [float(one) for one in np.arange(start, end, 0.25)]


def test_windows_fall_due_with_the_frames_and_the_watch_ends_with_the_source():
    said, watch = fed(Camera("waiting", *steps(0, 2.6)))
    assert said[:-1] == [1.5, 2.0, 2.5]  # the first one that begins after the first frame
    assert said[-1] is False  # for it has ended
    assert watch.summary.due == 3


def test_a_lost_signal_is_said_once_and_drops_the_window_that_waits():
    said, watch = fed(Camera(*steps(0, 1.6), "no signal", "no signal", "live", "no signal", *steps(9, 10.6)))
    assert said[:4] == [1.5, False, True, 9.0]  # of a gap the newest window alone
    assert watch.summary.signal_losses == 2  # then it ended
    assert (watch.summary.due, watch.summary.dropped) == (19, 19)  # 14 of them were not made


def test_no_window_shows_frames_of_two_segments():
    said, _ = fed(Camera(*steps(0, 5), segments={2.75: 1}.items()))
    assert said[:-1] == [1.5, 2.0, 2.5, 4.0, 4.5]


@pytest.mark.parametrize(("options", "ends"), [({"most": 2}, [1.5, 2.0]), ({"seconds": 1.5}, [1.5])])
def test_it_ends_after_so_many_windows_or_seconds(options, ends):
    said, _ = fed(Camera(*steps(0, 9)), **options)
    assert said == ends


@pytest.mark.parametrize(("until_s", "options"), [(2.1, {"most": 2}), (0.1, {"seconds": 0.02})])
def test_it_ends_also_if_the_signal_is_lost_for_good(until_s, options):
    camera = Camera(*steps(0, until_s), *["no signal"] * 1_000_000)
    fed(camera, **options)
    assert camera.state != "ended"


def test_an_error_of_the_source_is_raised_where_answers_are_waited_for():
    camera = Camera(0.0)
    camera.status = lambda: (_ for _ in ()).throw(CrossdraftError("The camera burns."))
    _, watch = fed(camera)
    with pytest.raises(CrossdraftError, match="The camera burns"):
        list(watch.answers())


def test_the_signal_is_said_between_windows():
    watch, said = Watch(lambda request, on_piece: None, [Request("What?")]), []
    watch.signal(there=False)
    watch.signal(there=True)
    watch.close()
    assert list(watch.answers(on_signal=said.append)) == []
    assert said == [False, True]


def test_a_window_that_waits_when_the_signal_is_lost_is_never_answered():
    watch = Watch(lambda request, on_piece: pytest.fail("an old window was asked about"), [Request("What?")])
    watch.offer(StreamWindow(0, 0.0, 1.0, np.zeros((1, 2, 2, 3), np.uint8), (1.0,), None, 0.0))
    watch.signal(there=False)
    watch.close()
    assert list(watch.answers()) == []
    assert watch.summary.dropped == 1
