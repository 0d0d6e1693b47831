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
from crossdraft.streams.replay import ReplayClock
from crossdraft.video import iter_frames
from crossdraft.video.grid import CLOSE_S, FrameGrid

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
    """The events of a recording one after another, up to one moment after another; second 0 is the excerpt's start."""

    def __init__(self, excerpt: Excerpt) -> None:
        self._zero = excerpt.start_us or 0
        self._chunks = excerpt.chunks()
        self._held = next(self._chunks, None)

    @property
    def sensor(self) -> tuple[int, int] | None:
        """Width and height."""
        return None if self._held is None else (self._held.width, self._held.height)

    def until(self, time_s: float) -> Iterator[PushedEvents]:
        """Those before a moment that were not given yet."""
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
    grid: FrameGrid,
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
        grid: of the windows.
        send: takes the messages.
        clock: when; stopped, it ends without a word.
        events: of the same moment.
        seconds, most: as in `replay`.
        kind: of the frames' files, of `FORMATS`.

    Raises:
        CrossdraftError: as `replay`.
    """
    before_s, gap_s, last, sent = -1.0, 0.0, None, True
    until_s = float("inf") if most is None else grid.length_s + (most - 1) * grid.every_s - CLOSE_S

    def push(time_s: float, image: bytes | None) -> None:
        for message in () if events is None else events.until(time_s):
            send(message)
        if image is not None:
            send(PushedFrame(time_s, image))

    with closing(iter_frames(video)) as frames:
        for time_s, pixels in frames:
            if seconds is not None and time_s > seconds + CLOSE_S:
                before_s, gap_s, last = before_s, max(0.0, seconds - before_s), last
                break
            sent = grid.wants(before_s, time_s)
            image = encoded(pixels, kind) if sent else None
            if clock.until(time_s) is None:
                return
            push(time_s, image)
            gap_s = 0.0 if last is None else time_s - before_s
            before_s, last = time_s, pixels
            if time_s >= until_s:
                gap_s = 0.0
                break
    end_s = before_s + gap_s if seconds is None else min(before_s + gap_s, seconds)
    if last is not None and not sent:
        push(before_s, encoded(last, kind))
    if clock.until(end_s) is not None:
        push(end_s, None)
        send(StreamEnd(end_s))
