"""Sliding windows of a stream: frames on a grid of times, and the events of the same span."""

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Protocol

import numpy as np

from crossdraft.checks import positive, whole
from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, Events, Excerpt
from crossdraft.events.stream import Window, concatenate
from crossdraft.video.clip import DEFAULT_FRAMES
from crossdraft.video.grid import CLOSE_S, WindowGrid
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

SMALL_CHUNK = 1024  # events: what comes in smaller pieces is joined, so that there are few


@dataclass(frozen=True, slots=True)
class Windowing:
    """The windows of a stream: one each `every_s`, the first as soon as the stream is `length_s` long.

    Window j has a frame for each of `frames` times, `length_s / frames` apart, the last at `length_s + j * every_s`:
    the first frame at or after each. Where `every_s` is no multiple of that step, the window is earlier by less than a
    step, such that all windows lie on one grid (`WindowGrid`): windows that overlap share frames.

    Args:
        every_s: seconds from window to window.
        length_s: seconds of the stream that a window shows.
        frames: number of frames of each window.

    Raises:
        CrossdraftError: a value is no number, or too small.
    """

    every_s: float = 0.5
    length_s: float = 1.0
    frames: int = DEFAULT_FRAMES

    def __post_init__(self) -> None:
        positive("every_s", self.every_s)
        positive("length_s", self.length_s)
        whole("frames", self.frames)

    @property
    def grid(self) -> WindowGrid:
        """Grid of the times at which windows have frames."""
        return WindowGrid(self.every_s, self.length_s, self.frames)

    @property
    def open(self) -> int:
        """Greatest number of windows that wait for frames at the same time."""
        return math.ceil(self.length_s / self.every_s) + 1

    def begins(self, number: int) -> float:
        """Return the second of the stream at which window `number` begins."""
        return self.grid.begins(number)

    def times(self, number: int) -> list[float]:
        """[frames] seconds of the stream for which a window has a frame each, rising.

        >>> Windowing(0.5, 1.0, 4).times(1)
        [0.75, 1.0, 1.25, 1.5]
        """
        end, step = self.begins(number) + self.length_s, self.grid.spacing_s
        return [end - step * back for back in reversed(range(self.frames))]

    def count(self, seconds: float) -> int:
        """Number of windows of a stream of so many seconds.

        >>> Windowing(0.5, 1.0).count(2.25)
        3
        """
        return int(self.grid.begun(np.array(seconds - self.length_s)))


@dataclass(frozen=True, slots=True, eq=False)
class StreamWindow:
    """A window that is due: all its frames are there.

    Args:
        number: number of the window, from 0; unanswered windows count.
        start_s, end_s: the span of the stream; `end_s` is the time of the last frame.
        frames: uint8 RGB [F, H, W, 3].
        times_s: [F] times of the frames, in seconds of the stream.
        events: events of the span, as a request takes them; `None` = there is no event camera.
        due_at: time at which the last frame was there, by the feeder's clock.
    """

    number: int
    start_s: float
    end_s: float
    frames: np.ndarray
    times_s: tuple[float, ...]
    events: object
    due_at: float


class EventSource(Protocol):
    """A source of a window's events."""

    def between(self, start_s: float, end_s: float) -> object:
        """Return the events with start_s <= t < end_s, as a request takes them."""
        ...


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """Events of a file: the drafter reads what it needs of the file, and nothing is held here.

    Args:
        excerpt: what the stream shows; second 0 of the stream is its start.
    """

    excerpt: Excerpt

    def between(self, start_s: float, end_s: float) -> Excerpt:
        zero = self.excerpt.start_us or 0
        return replace(self.excerpt, start_us=zero + max(0, round(start_s * 1e6)), end_us=zero + round(end_s * 1e6))


class EventBuffer:
    """Events as they come, the newest `keep_s` of them.

    Args:
        keep_s: at least the length of a window.
        zero_us: what the events' clock shows at second 0 of the stream.
        limits: on how many are held.
        most: events beyond which the oldest give way, and are counted in `dropped`; `None` = all count for `limits`.
    """

    def __init__(
        self, keep_s: float, zero_us: int = 0, limits: EventLimits | None = None, most: int | None = None
    ) -> None:
        self.keep_us = round(positive("keep_s", keep_s) * 1e6)
        self.zero_us, self.dropped, self._most = zero_us, 0, most
        self._limits = limits or EventLimits()
        self._chunks: deque[Events] = deque()
        self._count = 0

    def add(self, events: Events) -> None:
        """Add the next events.

        Raises:
            CrossdraftError: the events begin before the last ones end, or are too many to be held.
        """
        if not len(events):
            return
        if self._chunks and events.t0 < int(self._chunks[-1].t[-1]):
            raise CrossdraftError(
                f"Events came out of order: {events.t0} µs after {int(self._chunks[-1].t[-1])} µs; send them by time."
            )
        self._count += len(events)
        if self._chunks and len(self._chunks[-1]) + len(events) <= SMALL_CHUNK:
            events = concatenate((self._chunks.pop(), events))
        self._chunks.append(events)
        oldest = int(events.t[-1]) - self.keep_us
        while int(self._chunks[0].t[-1]) < oldest:
            self._count -= len(self._chunks.popleft())
        self._cut(Window(oldest).clip(self._chunks[0]))
        while self._most is not None and self._count > self._most:
            over = min(self._count - self._most, len(self._chunks[0]))
            self.dropped += over
            self._cut(self._chunks[0].take(slice(over, None)))
        self._limits.check_held("The event stream", len(self))

    def _cut(self, kept: Events) -> None:
        """Replace the oldest chunk by a part of it."""
        first = self._chunks.popleft()
        self._count -= len(first) - len(kept)
        if len(kept):
            self._chunks.appendleft(kept)

    def __len__(self) -> int:
        """Number of events held."""
        return self._count

    def between(self, start_s: float, end_s: float) -> Events | None:
        if not self._chunks:
            return None
        start, end = (self.zero_us + round(second * 1e6) for second in (start_s, end_s))
        inside = [chunk.slice(start, end) for chunk in self._chunks]
        return concatenate([part for part in inside if len(part)] or inside[:1])  # views, if it is one chunk


class SlidingWindows:
    """Takes frames as they come, and gives windows as they fall due. Holds no frame that no window needs.

    A window is made of the held frames when it is due. Until then, and if it is not made at all, it costs nothing.

    Args:
        windowing: which windows.
        events: where their events come from.
        limits: on the pixels that are held; `seconds` and `frames` do not count, for a stream has no end.
        now: the clock of `StreamWindow.due_at`.
        newest: if several windows fall due with one frame, after a gap, make only the newest.

    Attributes:
        passed: windows that were due and not made.
    """

    def __init__(
        self,
        windowing: Windowing,
        events: EventSource | None = None,
        limits: VideoLimits = DEFAULT_LIMITS,
        now: Callable[[], float] = time.perf_counter,
        *,
        newest: bool = False,
    ) -> None:
        self.windowing, self.passed = windowing, 0
        self._newest = newest
        self._events = events
        self._limits = limits
        self._now = now
        self._held: list[tuple[float, np.ndarray]] = []  # the frames that windows show which are not due
        self._next = 0  # number of the window that is due next
        self._last: tuple[float, np.ndarray] | None = None

    def add_frame(self, time_s: float, pixels: np.ndarray, at: float | None = None) -> list[StreamWindow]:
        """Add the next frame; its events must be there.

        Args:
            time_s: seconds of the stream, rising.
            pixels: uint8 RGB [H, W, 3]; must stay as it is.
            at: when it was there, on the clock; `None` = now.

        Returns:
            The windows that are due with it: mostly none or one; several after a gap in the stream.

        Raises:
            CrossdraftError: a frame of another shape, size or kind, one that is not later than the last, or too many
                pixels to hold.
        """
        self._check(time_s, pixels)
        before_s = -1.0 if self._last is None else self._last[0]
        self._last = time_s, pixels
        return self._due(before_s, time_s, pixels, self._now() if at is None else at)

    def restart(self, time_s: float) -> None:
        """Forget all frames, as after a gap: the next window is the first that begins after this second."""
        self._held, self._last = [], None
        self._next = max(self._next, int(self.windowing.grid.begun(np.array(time_s))))

    def finish(self, end_s: float, at: float | None = None) -> list[StreamWindow]:
        """The windows that are due with the end of the stream, up to which the last frame is shown."""
        if self._last is None:
            return []
        return self._due(self._last[0], end_s, self._last[1], self._now() if at is None else at)

    def _due(self, before_s: float, time_s: float, pixels: np.ndarray, at: float) -> list[StreamWindow]:
        """The windows that are due with a frame, if the frame before it was at `before_s`."""
        self._held.append((time_s, pixels))
        due = max(self._next, self.windowing.count(time_s))  # windows, the earlier ones included
        first = max(self._next, due - 1) if self._newest else self._next
        made = [self._window(number, time_s, at) for number in range(first, due)]
        self.passed += first - self._next
        self._next = due
        if not self.windowing.grid.wants(before_s, time_s):
            self._held.pop()
        del self._held[: self._at_or_after(self.windowing.times(due)[0])]
        return made

    def _at_or_after(self, time_s: float) -> int:
        """The first of the held frames at or after a time, by its place."""
        return bisect_left(self._held, time_s - CLOSE_S, key=itemgetter(0))

    def _window(self, number: int, end_s: float, at: float) -> StreamWindow:
        last = len(self._held) - 1  # the frame that the window is due with, but for rounding at or after all its times
        shown = [self._held[min(last, self._at_or_after(time_s))] for time_s in self.windowing.times(number)]
        start_s = end_s - self.windowing.length_s
        events = None if self._events is None else self._events.between(start_s, end_s)
        frames = np.stack([pixels for _, pixels in shown])
        return StreamWindow(number, start_s, end_s, frames, tuple(time_s for time_s, _ in shown), events, at)

    def _check(self, time_s: float, pixels: np.ndarray) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise CrossdraftError(
                f"A frame of the stream is {pixels.dtype} {list(pixels.shape)}; a frame is uint8 [H, W, 3] in RGB."
            )
        height, width = pixels.shape[:2]
        if self._last is None:
            name = "The stream"
            self._limits.check(name, width=width, height=height, frames=1, seconds=0.0)
            self._limits.check_held(name, self.windowing.frames * self.windowing.open, width, height)
        elif self._last[1].shape != pixels.shape:
            old = self._last[1].shape
            raise CrossdraftError(f"The stream changes size from {old[1]}x{old[0]} to {width}x{height}; keep one size.")
        elif not time_s > self._last[0]:
            raise CrossdraftError(
                f"A frame of the stream is of {time_s:g} s, after one of {self._last[0]:g} s; send frames by time."
            )
        if not 0 <= time_s < math.inf:
            raise CrossdraftError(f"A frame of the stream is of {time_s} s; give seconds since the stream began.")
