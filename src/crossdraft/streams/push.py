"""A clip here as a live stream for a server: its frames and events are pushed when they would have been taken."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import cv2
import numpy as np

from crossdraft.checks import choice
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt
from crossdraft.streams.messages import MOST_EVENTS, Pushed, PushedEvents, PushedFrame, StreamEnd
from crossdraft.streams.replay import ReplayClock, no_window
from crossdraft.video import iter_frames
from crossdraft.video.grid import CLOSE_S, WindowGrid

FORMATS = ("png", "jpeg")  # of a pushed frame: png loses nothing


def encoded(pixels: np.ndarray, kind: str = "png") -> bytes:
    """uint8 RGB [H, W, 3] as a file.

    Raises:
        CrossdraftError: an unknown kind, or pixels that it cannot hold.
    """
    fine, data = cv2.imencode(f".{choice('format of frames', kind, FORMATS)}", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    if not fine:
        raise CrossdraftError(f"A frame of shape {list(pixels.shape)} cannot be encoded as {kind}.")
    return data.tobytes()


class EventFeed:
    """Gives the events of a recording in order, each time up to a later moment; second 0 is the excerpt's start.

    Attributes:
        sensor: width and height; `None` = there are no events.
    """

    def __init__(self, excerpt: Excerpt) -> None:
        self._zero = excerpt.start_us or 0
        self._chunks = excerpt.chunks()
        self._held = next(self._chunks, None)
        self.sensor = None if self._held is None else (self._held.width, self._held.height)

    def until(self, time_s: float) -> Iterator[PushedEvents]:
        """Yield the events before a moment that were not given yet."""
        end = self._zero + round(time_s * 1e6)
        while self._held is not None:
            row = int(np.searchsorted(self._held.t, end))
            for start in range(0, row, MOST_EVENTS):
                yield self._message(self._held.take(slice(start, min(row, start + MOST_EVENTS))))
            if row < len(self._held):
                self._held = self._held.take(slice(row, None))
                return
            self._held = next(self._chunks, None)

    def _message(self, events: Events) -> PushedEvents:
        return PushedEvents(events.t - self._zero, events.x, events.y, events.p)


def push_clip(
    video: str | os.PathLike[str],
    grid: WindowGrid,
    send: Callable[[Pushed], object],
    clock: ReplayClock,
    *,
    events: EventFeed | None = None,
    seconds: float | None = None,
    most: int | None = None,
    kind: str = "png",
) -> None:
    """Push a clip in its own time: the frames that windows show, the events before each of them, and the end.

    Args:
        video: the clip.
        grid: grid of the windows.
        send: takes the messages.
        clock: when; once it is stopped the stream ends.
        events: events of the same moment as the clip.
        seconds, most: as in `replay`.
        kind: format of the frames' files, one of `FORMATS`.

    Raises:
        CrossdraftError: as `iter_frames`, or the clip ends before the first window is due.
    """
    last_due_s = float("inf") if most is None else grid.length_s + grid.begins(most - 1) - CLOSE_S
    most_s = float("inf") if seconds is None else seconds
    before_s, end_s, pushed_s = -1.0, 0.0, 0.0
    unsent: np.ndarray | None = None  # the last frame, which is shown up to the end

    def push(until_s: float, frame: PushedFrame | None = None) -> None:
        nonlocal pushed_s
        for message in () if events is None else events.until(until_s):
            send(message)
        if frame is not None:
            send(frame)
            pushed_s = frame.time_s

    with closing(iter_frames(video)) as frames:
        for time_s, pixels in frames:
            if time_s > most_s + CLOSE_S:
                end_s = most_s
                break
            wanted = grid.wants(before_s, time_s)
            frame = PushedFrame(time_s, encoded(pixels, kind)) if wanted else None
            if clock.until(time_s) is None:
                send(StreamEnd(pushed_s))
                return
            push(time_s, frame)
            unsent = None if wanted else pixels
            end_s = time_s if before_s < 0 else min(2 * time_s - before_s, most_s)
            before_s = time_s
            if time_s >= last_due_s:
                end_s = time_s
                break
    if unsent is not None:
        push(before_s, PushedFrame(before_s, encoded(unsent, kind)))
    if clock.until(end_s) is not None:
        _refuse_short(end_s, grid)
        push(end_s)
    send(StreamEnd(max(pushed_s, end_s)))


def _refuse_short(end_s: float, grid: WindowGrid) -> None:
    """Refuse a clip that ends before the first window is due."""
    if end_s < grid.length_s - CLOSE_S:
        raise no_window(end_s, grid.length_s)
