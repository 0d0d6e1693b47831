"""A live source of frames as the feed of a watch, and what a watch says of its sources."""

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from time import perf_counter

from crossdraft.streams.live.events import LiveEvents
from crossdraft.streams.live.frames import LiveFrame, LiveFrames
from crossdraft.streams.live.source import POLL_S
from crossdraft.streams.replay import feeding
from crossdraft.streams.watch import Watch
from crossdraft.streams.windows import SlidingWindows


def watching(
    source: LiveFrames, windows: SlidingWindows, watch: Watch, *, seconds: float | None = None, most: int | None = None
) -> AbstractContextManager[None]:
    """Feed a watch from a live source, in a thread that ends with the context; its errors the watch raises.

    Windows begin anew with each segment, so that none shows frames of two. The watch ends after `seconds` from its
    first frame on, also without a signal, after `most` windows, dropped ones included, or once the source has ended.
    """
    stopped, length_s = threading.Event(), math.inf if seconds is None else seconds

    def feed() -> None:
        passed, segment, until_s = 0, None, None
        for frame in _frames(source, watch, stopped, length_s):
            until_s = frame.time_s + length_s if until_s is None else until_s
            if frame.time_s > until_s:
                return
            if segment != (segment := frame.segment):
                windows.restart(frame.time_s)
            found = windows.add_frame(frame.time_s, frame.pixels, frame.at)
            watch.count_dropped(windows.passed - passed)
            passed = windows.passed
            for window in found:
                watch.offer(window)
            if most is not None and watch.summary.due >= most:
                return

    return feeding(feed, watch.close, stopped.set)


def sources_json(frames: LiveFrames | None, events: LiveEvents | None) -> dict[str, dict[str, object]]:
    """The cameras of a stream that are there, `video` and `events`, and their state, as plain values."""
    found = {"video": frames, "events": events}
    return {name: one.to_json() for name, one in found.items() if one is not None}


def _frames(source: LiveFrames, watch: Watch, stopped: threading.Event, length_s: float) -> Iterator[LiveFrame]:
    """Yield frames until the source has ended; say to the watch when the signal is lost, and when it is back."""
    signal, ends_at = True, math.inf
    while not stopped.is_set():
        frame, state = source.take(POLL_S), source.status().state
        if frame is None and state in ("live", "waiting"):
            continue
        if signal != (signal := frame is not None):
            watch.signal(there=signal)
        if frame is not None:
            ends_at = min(ends_at, perf_counter() + length_s)
            yield frame
        elif state == "ended" or perf_counter() > ends_at:
            return
