"""A live stream that a client pushes: a bounded queue of messages to be decoded, from which the oldest are dropped."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

from crossdraft.events import EventLimits, Events
from crossdraft.events.stream import Sensor
from crossdraft.serve.budget import MediaShare
from crossdraft.serve.errors import ApiError, bad_request
from crossdraft.serve.media import MediaLoader
from crossdraft.streams import EventBuffer, SlidingWindows, StreamWindow, Watch, Windowing
from crossdraft.streams.messages import MESSAGE_BYTES, Pushed, PushedEvents, PushedFrame, StreamEnd
from crossdraft.video.limits import VideoLimits

P = ParamSpec("P")

WAITING_FRAMES = 8
WAITING_MESSAGES = 2048
WAITING_BYTES = 4 * MESSAGE_BYTES
MOST_GAP_S = 60.0  # seconds between two frames
MOST_HELD = 4_000_000  # events: 52 MB
# 200 MB over all open windows.
LIMITS = VideoLimits(held=1 << 26)
INLINE_EVENTS = 1 << 14  # events checked on the event loop; more are checked in a thread


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A message, and its time of arrival."""

    message: Pushed
    at: float

    @property
    def nbytes(self) -> int:
        match self.message:
            case PushedFrame(_, image):
                return len(image)
            case PushedEvents():
                return 13 * len(self.message.t)
        return 0


class LiveSource:
    """Takes pushed messages, decodes them in order, and offers the windows that fall due.

    Args:
        media: decoder of the frames.
        windowing: settings of the windows.
        watch: object that answers the windows.
        share: the stream's share of the media budget.
        sensor: size of the event camera; `None` = there is none.
    """

    def __init__(
        self, media: MediaLoader, windowing: Windowing, watch: Watch, share: MediaShare, sensor: Sensor | None
    ) -> None:
        self.counts = Counter[str]()
        self._media, self._watch, self._share, self._sensor = media, watch, share, sensor
        limits = EventLimits(events=MOST_HELD + (1 << 20))  # the limit of `_events`, plus the events of one message
        self._buffer = None if sensor is None else EventBuffer(windowing.length_s, limits=limits)
        self._windowing = windowing
        self._windows = SlidingWindows(windowing, self._buffer, LIMITS, newest=True)
        self._waiting: deque[_Waiting] = deque()
        self._nbytes, self._frames = 0, 0
        self._ended = self._stopped = False  # ended by the client; stopped by the server
        self._news = asyncio.Event()
        self._last_s: float | None = None
        self._passed = 0

    def push(self, message: Pushed) -> None:
        """Take a message; if too much waits, the oldest is dropped. Once stopped, messages are ignored.

        Raises:
            ApiError: the message comes after the end, or has events although no sensor was named.
        """
        if isinstance(message, PushedEvents) and self._sensor is None:
            raise bad_request("Events came, and no sensor was named; say sensor: [width, height] at first.", "sensor")
        if self._stopped:
            return
        if self._ended:
            raise bad_request("Something came after the end of the stream; connect anew.")
        one, self._ended = _Waiting(message, time.perf_counter()), isinstance(message, StreamEnd)
        self.counts[message.kind] += 1
        self._waiting.append(one)
        self._nbytes += one.nbytes
        self._frames += isinstance(message, PushedFrame)
        while (drop := self._too_much()) is not None:
            self._waiting.remove(self._forget(drop))
            self.counts[f"{drop.message.kind}_dropped"] += 1
        self._news.set()

    def _too_much(self) -> _Waiting | None:
        """Return the message to drop if too much waits: the oldest frame, or without frames the oldest events."""
        fits = len(self._waiting) <= WAITING_MESSAGES and self._nbytes <= WAITING_BYTES
        if fits and self._frames <= WAITING_FRAMES:
            return None
        return next((one for one in self._waiting if isinstance(one.message, PushedFrame)), self._waiting[0])

    def _forget(self, one: _Waiting) -> _Waiting:
        self._nbytes -= one.nbytes
        self._frames -= isinstance(one.message, PushedFrame)
        return one

    def stop(self) -> None:
        """Stop: offer no more windows, and drop waiting and later messages."""
        self._stopped = True
        self._waiting.clear()
        self._nbytes = self._frames = 0
        self._news.set()

    async def run(self) -> None:
        """Process messages until the end of the stream, or until `stop`.

        Raises:
            ApiError: invalid frames or events, or too much to hold.
            CrossdraftError: as `ApiError`, or a frame that cannot be decoded.
        """
        while True:
            while not self._waiting and not self._stopped:
                self._news.clear()
                await self._news.wait()
            if self._stopped:
                return
            one = self._forget(self._waiting.popleft())
            match one.message:
                case PushedFrame():
                    await self._frame(one.message, one.at)
                case PushedEvents():
                    await self._events(one.message)
                case StreamEnd():
                    self._check_time("The end", one.message.time_s)
                    await self._offer(self._windows.finish, one.message.time_s, one.at)
                    self._watch.close()
                    return

    def _check_time(self, what: str, time_s: float) -> None:
        last_s = self._last_s or 0.0
        if not last_s <= time_s <= last_s + MOST_GAP_S:
            raise bad_request(
                f"{what} of the stream is at {time_s:g} s, and the frame before at {last_s:g} s; give seconds since "
                f"the stream began, by time, with at most {MOST_GAP_S:g} s between two."
            )

    async def _frame(self, frame: PushedFrame, at: float) -> None:
        self._check_time("A frame", frame.time_s)
        pixels = await self._media.frame(frame.image, f"The frame of {frame.time_s:g} s")
        if self._last_s is None:
            height, width = pixels.shape[:2]
            # Open windows share frames at best; two more are being made, one waits and one is answered.
            self._share.hold(3 * width * height * self._windowing.frames * (self._windowing.open + 2))
        self._last_s = frame.time_s
        await self._offer(self._windows.add_frame, frame.time_s, pixels, at)

    async def _offer(self, find: Callable[P, list[StreamWindow]], *given: P.args, **named: P.kwargs) -> None:
        """Offer the windows that fall due; a thread makes them, because their frames are copied."""
        due = await asyncio.to_thread(find, *given, **named)
        self._watch.count_dropped(self._windows.passed - self._passed)
        self._passed = self._windows.passed
        for window in due:
            self._watch.offer(window)

    async def _events(self, message: PushedEvents) -> None:
        if len(message.t) < INLINE_EVENTS:
            self._add_events(message)
        else:
            await asyncio.to_thread(self._add_events, message)

    def _add_events(self, message: PushedEvents) -> None:
        if self._buffer is None or self._sensor is None:
            return
        self._buffer.add(Events.checked(message.x, message.y, message.t, message.p, *self._sensor, "The stream"))
        if len(self._buffer) > MOST_HELD:
            raise ApiError(
                413,
                f"A window has more than {MOST_HELD:,} events, the limit; make it shorter, or send fewer.",
                "too_many_events",
            )
