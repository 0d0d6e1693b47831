"""Live events: the newest events of a camera that sends now, on the clock of the stream."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from crossdraft.events import EventLimits, Events
from crossdraft.streams.live.clock import JUMP_S, ArrivalClock
from crossdraft.streams.live.source import SIGNAL_TIMEOUT_S, Items, LiveReader
from crossdraft.streams.windows import EventBuffer

MOST_EVENTS = EventLimits().events  # 416 MB
MARGIN_S = 1.0  # held beyond a window's length, for windows that are late


class LiveEvents:
    """Events of a live source, the newest `keep_s` seconds of them; its `reader` is to be started and closed.

    **Clock.** The stream's second 0 is a moment here (`align`). What the camera's clock showed at that moment is
    measured at the start, by arrival (`ArrivalClock`); or it is given, by `offset_s`: what the camera's clock shows at
    a frame, less the frame's own time. Where the camera's clock jumps, events of before are forgotten, and it is
    measured anew.

    Args:
        name, once, signal_timeout_s, now: as `LiveReader`.
        read: yields chunks, see `LiveReader`; an empty one says that the camera is there and sees nothing.
        keep_s: the length of a window.
        offset_s: see above; `None` = measured.
        most: events that are held at most; the oldest give way, and are counted.
    """

    def __init__(
        self,
        name: object,
        read: Callable[[], Items[Events]],
        keep_s: float,
        *,
        offset_s: float | None = None,
        once: bool = False,
        signal_timeout_s: float = SIGNAL_TIMEOUT_S,
        most: int = MOST_EVENTS,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._name, self._given_s, self._keep_s, self._most = name, offset_s, keep_s + MARGIN_S, most
        self._lock, self._clock, self._zero = threading.Lock(), ArrivalClock(), (0.0, 0.0)
        self._buffer = EventBuffer(self._keep_s, most=most)
        self._repairs: tuple[str, ...] = ()  # by the decoder
        self._size = 0, 0
        self.reader = LiveReader(
            name, read, self._take, count=len, once=once, signal_timeout_s=signal_timeout_s, now=now
        )

    def align(self, zero_at: float, zero_s: float = 0.0) -> None:
        """Say when the stream's second 0 was: the moment, by `now`, and the second of the frames' own clock."""
        self._zero = zero_at, zero_s

    @property
    def offset_s(self) -> float:
        """Second of the camera's clock at second 0 of the stream."""
        zero_at, zero_s = self._zero
        given = self._given
        return self._clock.source_s(zero_at) if given is None else zero_s + given

    @property
    def _given(self) -> float | None:
        """The offset that was given, unless the camera's clock has jumped since."""
        return self._given_s if self._clock.segments <= 1 else None

    def between(self, start_s: float, end_s: float) -> Events | None:
        """Events with start_s <= t < end_s, in seconds of the stream; `None` if there are none."""
        with self._lock:
            self._buffer.zero_us = round(self.offset_s * 1e6)
            return self._buffer.between(start_s, end_s) or None

    def to_json(self) -> dict[str, object]:
        """The state of the source and of its clock, as plain values."""
        status: dict[str, Any] = self.reader.status().to_json()
        return {
            "source": str(self._name),
            **status,
            "notes": [*self._repairs, *status["notes"]],
            "offset_s": round(self.offset_s, 6),
            "offset": "measured" if self._given is None else "given",
            "drift_ppm": self._clock.drift_ppm,
            "segments": self._clock.segments,
        }

    def _take(self, events: Events, at: float) -> None:
        """Take a chunk; where its times leap, what follows is a chunk of its own."""
        copies: dict[str, Any] = {name: getattr(events, name).copy() for name in "xytp"}  # no views of larger arrays
        self._repairs, events = events.notes, replace(events, notes=(), **copies)
        leaps = () if events.duration_us <= JUMP_S * 1e6 else np.flatnonzero(np.diff(events.t) > JUMP_S * 1e6) + 1
        for start, end in zip((0, *leaps), (*leaps, len(events)), strict=True):
            if start < end:
                self._add(events.take(slice(start, end)), at)

    def _add(self, events: Events, at: float) -> None:
        first_s, known, size = events.t0 / 1e6, self._clock.segments, (events.width, events.height)
        with self._lock:
            jumped = self._clock.saw(first_s, int(events.t[-1]) / 1e6, at)
            if jumped or size != self._size:
                self._buffer, self._size = EventBuffer(self._keep_s, most=self._most), size
            if jumped and known:
                self.reader.note(f"The clock of {self._name} jumped to {first_s:.6f} s; a new segment began.")
            before = self._buffer.dropped
            self._buffer.add(events)
            self.reader.dropped += self._buffer.dropped - before
