"""A recorded clip as a stream: each frame is there when it would have been taken."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from crossdraft.checks import positive
from crossdraft.errors import CrossdraftError
from crossdraft.streams.watch import Watch
from crossdraft.streams.windows import SlidingWindows, StreamWindow
from crossdraft.video import iter_frames
from crossdraft.video.grid import CLOSE_S


class Wait(Protocol):
    """Waits for a number of seconds, as `threading.Event.wait`; returns true if the replay is to stop."""

    def __call__(self, timeout: float, /) -> bool: ...


@dataclass
class ReplayClock:
    """The clock of a replayed stream.

    Args:
        speed: 1 = as they were taken, 2 = twice as fast.
        now: the clock, in seconds.
        wait: how to wait on it; by default until `stop` is called.

    Attributes:
        late_s: by how much a frame came late at most, because decoding it took longer than it was shown.

    Raises:
        CrossdraftError: a speed that is not above 0.
    """

    speed: float = 1.0
    now: Callable[[], float] = time.perf_counter
    wait: Wait | None = None
    late_s: float = field(default=0.0, init=False)
    _start: float | None = field(default=None, init=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        positive("speed", self.speed)

    def stop(self) -> None:
        """End the replay; may be called from any thread."""
        self._stopped.set()

    def until(self, time_s: float) -> float | None:
        """Wait for a moment of the stream, the first of which is now; return when it was due, or `None` if stopped."""
        now = self.now()
        if self._start is None:
            self._start = now - time_s / self.speed
        due = self._start + time_s / self.speed
        wait = self.wait or self._stopped.wait
        if self._stopped.is_set() or (due > now and wait(due - now)):
            return None
        self.late_s = max(self.late_s, self.now() - due)
        return due


def replay(
    frames: Iterable[tuple[float, np.ndarray]],
    windows: SlidingWindows,
    offer: Callable[[StreamWindow], object],
    clock: ReplayClock,
    *,
    seconds: float | None = None,
    most: int | None = None,
) -> None:
    """Feed a clip's frames to windows in their time, one decoded ahead, and offer the windows that fall due.

    A window is due when its last frame should have been there, even if it was decoded late.

    Args:
        frames: seconds since the first one and uint8 RGB [H, W, 3], as `video.iter_frames` gives them.
        windows: windows of the stream.
        offer: takes each window.
        clock: when.
        seconds: length of the stream; `None` = the whole clip.
        most: number of windows after which the stream ends.

    Raises:
        CrossdraftError: a frame cannot be read, or the clip ends before the first window is due.
    """
    given, last_s, gap_s = 0, 0.0, 0.0

    def hand_over(found: list[StreamWindow]) -> bool:
        """Offer windows; return true once all wanted windows are offered."""
        nonlocal given
        for window in found[: None if most is None else most - given]:
            offer(window)
            given += 1
        return most is not None and given >= most

    for time_s, pixels in frames:
        if seconds is not None and time_s > seconds + CLOSE_S:
            last_s, gap_s = seconds, 0.0  # up to there the last frame is shown
            break
        at = clock.until(time_s)
        if at is None or hand_over(windows.add_frame(time_s, pixels, at)):
            return
        last_s, gap_s = time_s, time_s - last_s
    end_s = last_s + gap_s
    end_s = end_s if seconds is None else min(end_s, seconds)
    at = clock.until(end_s)
    if at is None:
        return
    hand_over(windows.finish(end_s, at))
    if not given:
        raise no_window(end_s, windows.windowing.length_s)


def no_window(end_s: float, length_s: float) -> CrossdraftError:
    """Make the error for a stream that ends before its first window is due."""
    return CrossdraftError(
        f"The stream ends after {end_s:.3f} s, and a window is {length_s:g} s long; give a longer clip or shorter "
        "windows."
    )


@contextmanager
def replaying(
    video: str | os.PathLike[str] | Sequence[tuple[float, np.ndarray]],
    windows: SlidingWindows,
    watch: Watch,
    clock: ReplayClock,
    *,
    seconds: float | None = None,
    most: int | None = None,
) -> Iterator[None]:
    """Feed a clip to a watch, in a thread that ends with the context; what goes wrong in it the watch raises.

    A file is decoded as time passes: beside the windows' frames one is held. Arguments as `replay`; `video` may also be
    its frames, decoded already.
    """

    def feed() -> None:
        if isinstance(video, str | os.PathLike):
            with closing(iter_frames(video)) as frames:
                replay(frames, windows, watch.offer, clock, seconds=seconds, most=most)
        else:
            replay(video, windows, watch.offer, clock, seconds=seconds, most=most)

    try:
        with feeding(feed, watch.close, clock.stop):
            yield
    finally:
        watch.summary.late_s = clock.late_s


@contextmanager
def feeding(
    feed: Callable[[], None], ended: Callable[[Exception | None], object], stop: Callable[[], object]
) -> Iterator[None]:
    """Run a feed in a thread, which `stop` ends with the context; `ended` takes what went wrong in it."""

    def run() -> None:
        error: Exception | None = None
        try:
            feed()
        except Exception as found:  # noqa: BLE001 - raised where the answers are waited for
            error = found
        ended(error)

    thread = threading.Thread(target=run, name="feed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()
