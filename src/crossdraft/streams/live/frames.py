"""Frames of a live source: decoded as they come, the newest of them held."""

from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.streams.live.address import LiveAddress
from crossdraft.streams.live.clock import ArrivalClock
from crossdraft.streams.live.incoming import IncomingBytes
from crossdraft.streams.live.source import SIGNAL_TIMEOUT_S, Items, LiveQueue, LiveReader, LiveStatus
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits
from crossdraft.video.live import LiveDecoder, LiveInput

KEEP_S = 2.0
MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, eq=False)
class LiveFrame:
    """A frame of a live source.

    Args:
        time_s: second of the stream, rising, also where the source came back or its clock jumped.
        pixels: uint8 RGB [H, W, 3]; stays as it is.
        at: moment of its arrival, by `time.perf_counter`.
        segment: another number than the frame's before where the source came back, jumped, or changed its size.
    """

    time_s: float
    pixels: np.ndarray
    at: float
    segment: int = 0


class LiveFrames:
    """Frames of a camera, or of a program such as ffmpeg: the newest `keep_s` of them, as far as bytes allow. Close it.

    At a UDP or TCP address we listen, and a program sends MPEG-TS there. Second 0 of the stream is when the first frame
    was there. A frame's time is the moment at which it would have been there without delay, by its time stamp and
    `ArrivalClock`.

    Args:
        address: where they come from.
        keep_s, most_bytes: how much is held at most.
        limits: on the pixels of a frame.
        signal_timeout_s: seconds without a frame after which there is no signal, and the connection is given up.

    Attributes:
        reader, clock: the thread, which is to be started, and the clock of the source against ours.
        zero_at, zero_s: of second 0 the moment, by `time.perf_counter`, and the second of the source.
        port: port that is listened at; 0 elsewhere.

    Raises:
        CrossdraftError: the address cannot be listened at, or has letters that it needs not.
    """

    def __init__(
        self,
        address: LiveAddress,
        *,
        keep_s: float = KEEP_S,
        most_bytes: int = MOST_BYTES,
        limits: VideoLimits = DEFAULT_LIMITS,
        signal_timeout_s: float = SIGNAL_TIMEOUT_S,
    ) -> None:
        self.zero_at, self.zero_s, self.port = 0.0, 0.0, 0
        self._name, self._limits, self._timeout_s = str(address), limits, signal_timeout_s
        self.clock, self._segment = ArrivalClock(), 0
        self._held: LiveQueue[LiveFrame] = LiveQueue(keep_s, most_bytes)
        self._last: LiveFrame | None = None
        self.reader = LiveReader(address, self._read, self._take, signal_timeout_s=signal_timeout_s)
        self._bytes: IncomingBytes | None = None
        self._source = self._opened(address)

    def _opened(self, address: LiveAddress) -> LiveInput:
        if address.kind == "v4l2":
            return LiveInput.device(address.path)
        if address.kind == "rtsp":
            host = f"[{address.host}]" if ":" in address.host else address.host
            return LiveInput.rtsp(self._name, address.path, host, address.port)
        try:
            self._bytes = IncomingBytes(address, self._timeout_s, self.reader.closing)
        except OSError as error:
            raise CrossdraftError(f"{address} cannot be listened at ({error.strerror}); choose another.") from None
        self.port = self._bytes.port
        return LiveInput(self._name, cast("BinaryIO", self._bytes))

    def take(self, wait_s: float) -> LiveFrame | None:
        """Take the oldest frame that is held; `None` if none comes in time."""
        return self._held.take(wait_s)

    def newest(self, seconds: float) -> list[LiveFrame]:
        """Return the held frames of the last so many seconds, as they are, without those of an earlier segment."""
        found = self._held.newest(seconds)
        return [frame for frame in found if frame.segment == found[-1].segment]

    def status(self) -> LiveStatus:
        """The state of the source now."""
        return self.reader.status()

    def to_json(self) -> dict[str, object]:
        """The state of the source and the drift of its clock, as plain values."""
        return self.status().to_json() | {"drift_ppm": self.clock.drift_ppm}

    def close(self) -> None:
        """End the thread, and close the source."""
        self.reader.close()
        if self._bytes is not None:
            self._bytes.close()

    def _read(self) -> Items[tuple[float, np.ndarray, bool]]:
        """Yield the time stamp and the pixels of frames, and whether one is the first of its connection."""
        if self._bytes is not None and not self._bytes.wait():
            return
        with closing(LiveDecoder(self._source, self._timeout_s, self._limits)) as decoder:
            first = True
            for stamp_s, pixels in decoder:
                for note in decoder.notes if first else ():
                    self.reader.note(note)
                yield stamp_s, pixels, first
                first = False
            if decoder.damaged:
                self.reader.note(f"{self._name} sent {decoder.damaged} damaged packets or frames; they are left out.")

    def _take(self, item: tuple[float, np.ndarray, bool], at: float) -> None:
        stamp_s, pixels, first = item
        last = self._last
        if last is None:
            self.zero_at, self.zero_s = at, stamp_s
        jumped = self.clock.saw(stamp_s, stamp_s, at)
        if first or jumped or last is None or last.pixels.shape != pixels.shape or at - last.at > self._timeout_s:
            self._segment += 1
        time_s = at - self.zero_at + stamp_s - self.clock.source_s(at)
        if last is not None and time_s <= last.time_s:  # what is measured anew may lie before what was held
            return
        self._last = LiveFrame(time_s, pixels, at, self._segment)
        self.reader.dropped += self._held.put(self._last, time_s, pixels.nbytes)
