"""A clip as a stream, on a clock that only moves when somebody waits or decodes."""

import threading

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.streams import ReplayClock, SlidingWindows, Watch, Windowing, replay, replaying
from tests.streams.test_watch import QUESTION, answer


class FakeTime:
    """Seconds that pass by waiting, and by decoding a frame."""

    def __init__(self, decoding: float = 0.0) -> None:
        self.seconds, self.decoding, self.decoded = 100.0, decoding, 0

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return False

    def frames(self, count: int, fps: float = 10):
        for number in range(count):
            self.seconds += self.decoding
            self.decoded += 1
            yield number / fps, np.full((4, 4, 3), number, np.uint8)


def played(time: FakeTime, count: int = 25, speed: float = 1.0, **bounds):
    clock = ReplayClock(speed, time.now, time.wait)
    found = []
    replay(
        time.frames(count),
        SlidingWindows(Windowing(0.5, 1.0, 2)),
        lambda window: found.append((window.number, time.now() - 100.0, window.due_at - 100.0)),
        clock,
        **bounds,
    )
    return found, clock


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_windows_are_due_in_the_time_of_the_stream(speed):
    found, clock = played(FakeTime(), speed=speed)
    assert [number for number, *_ in found] == [0, 1, 2, 3]
    assert [at for _, at, _ in found] == pytest.approx([1.0 / speed, 1.5 / speed, 2.0 / speed, 2.5 / speed])
    assert clock.late_s == pytest.approx(0)


def test_what_is_decoded_late_is_due_when_it_should_have_been_there():
    found, clock = played(FakeTime(decoding=0.25))
    lateness = [at - due for _, at, due in found]
    assert [due for *_, due in found] == pytest.approx([1.25, 1.75, 2.25, 2.75])  # the first frame came at 0.25
    assert lateness == pytest.approx([1.5, 2.25, 3.0, 3.5])
    assert clock.late_s == pytest.approx(3.6)  # the last frame, decoded at 6.25, due at 2.65


def test_bounds_end_it_and_no_more_is_decoded():
    time = FakeTime()
    assert [number for number, *_ in played(time, most=2)[0]] == [0, 1]
    assert time.decoded == 16
    time = FakeTime()
    assert [number for number, *_ in played(time, seconds=1.25)[0]] == [0]
    assert time.decoded == 14


def test_a_clip_shorter_than_a_window_is_refused():
    with pytest.raises(CrossdraftError, match=r"ends after 0\.500 s, and a window is 1 s long"):
        played(FakeTime(), count=5)


def test_a_speed_without_sense_is_refused():
    with pytest.raises(CrossdraftError, match="speed is 0"):
        ReplayClock(0)


def test_leaving_ends_the_replay_at_once_and_its_thread(clip):
    watch = Watch(lambda request, on_piece: answer("x"), [QUESTION])
    clock = ReplayClock(0.001)  # a thousand times slower
    with replaying(clip.video, SlidingWindows(Windowing(0.1, 0.2, 2)), watch, clock):
        assert "feed" in {thread.name for thread in threading.enumerate()}
    assert "feed" not in {thread.name for thread in threading.enumerate()}
    assert list(watch.answers()) == []


def test_an_error_of_the_clip_is_raised_where_answers_are_waited_for(tmp_path):
    watch = Watch(lambda request, on_piece: answer("x"), [QUESTION])
    with (
        replaying(tmp_path / "no.mp4", SlidingWindows(Windowing()), watch, ReplayClock()),
        pytest.raises(CrossdraftError, match=r"no video file at .*no\.mp4"),
    ):
        list(watch.answers())


def test_another_thread_gives_a_replay_up_and_the_loop_over_its_answers_ends():
    """While the first window is answered: that is still handed over, and no other one comes."""

    def answer_once(request, on_piece):
        giving_up = threading.Thread(target=clock.stop)
        giving_up.start()
        giving_up.join()
        return answer("x")

    frames = [(0.1 * number, np.zeros((4, 4, 3), np.uint8)) for number in range(3)]
    endless = [*frames, (1e6, frames[-1][1])]
    watch, clock = Watch(answer_once, [QUESTION]), ReplayClock()
    with replaying(endless, SlidingWindows(Windowing(0.1, 0.2, 2)), watch, clock):
        assert [window.number for window in watch.answers()] == [0]
