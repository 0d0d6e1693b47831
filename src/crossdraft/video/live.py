"""Decoding a video while it comes: MPEG-TS from a socket, an RTSP camera, a capture device."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import BinaryIO
from urllib.parse import urlsplit

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.container import CODECS, DECODERS, LIBRARY_ERRORS, av
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits
from crossdraft.video.upright import Upright

RAW = "rawvideo"  # from many capture devices
# At most so much is read before the first frame, to learn what a stream holds.
PROBE = {"probesize": str(1 << 19), "analyzeduration": "500000", "fpsprobesize": "0"}
RTSP = {"rtsp_transport": "tcp", "allowed_media_types": "video", "protocol_whitelist": "rtsp,rtp,tcp"}
LETTERS = r"[\w.~%!*+=&:,/@-]*"
LOGIN, HOST = r"(?:[\w.~%!*+-]+(?::[\w.~%!*+-]*)?@)?", r"(?:[\w.-]+|\[[0-9a-f:.]+\])"
ADDRESS = re.compile(rf"rtsp://{LOGIN}{HOST}:\d+(?:/{LETTERS})?(?:\?{LETTERS})?", re.ASCII)
DEVICE = re.compile(r"/dev/video[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class LiveInput:
    """A source for FFmpeg, never a user's string: its name for people, and an opened file or an address made here."""

    name: str
    file: BinaryIO | str = field(repr=False)
    container: str = "mpegts"
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def rtsp(cls, name: str, url: str, host: str, port: int) -> "LiveInput":
        """Make the input of an RTSP camera at a host; its path and login are those of a URL.

        Raises:
            CrossdraftError: a part has letters by which FFmpeg could read the address differently.
        """
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        made = parts._replace(netloc=f"{login}{at}{host}:{port}").geturl()
        if not ADDRESS.fullmatch(made):
            raise CrossdraftError(f"{name} has letters that no address of a camera needs; write others as %XX.")
        return cls(name, made, "rtsp", RTSP)

    @classmethod
    def device(cls, path: str) -> "LiveInput":
        """Make the input of a capture device of Linux, `/dev/video0`; another path raises CrossdraftError."""
        if not DEVICE.fullmatch(path):
            raise CrossdraftError(f"{path} is no capture device; name one as /dev/video0.")
        return cls(path, path, "video4linux2")


class LiveDecoder:
    """Frames of a live source, each as soon as it can be decoded; damaged packets are skipped and counted. Close it.

    Args:
        source: what is decoded.
        timeout_s: seconds without a byte after which a camera or device has ended; an opened file ends by itself.
        limits: on the pixels of a frame; a stream has no length.

    Raises:
        CrossdraftError: the source cannot be opened, or holds no video of a codec that is read.
    """

    def __init__(self, source: LiveInput, timeout_s: float = 5.0, limits: VideoLimits = DEFAULT_LIMITS) -> None:
        self.damaged, self.notes = 0, ()
        codecs = (*CODECS, RAW) if source.container == "video4linux2" else CODECS
        pixels = {"max_pixels": str(limits.pixels)}
        options = {"codec_whitelist": ",".join((*DECODERS, *codecs)), "fflags": "discardcorrupt"}
        options |= PROBE | pixels | dict(source.options)
        try:
            self._container = av.open(source.file, "r", format=source.container, options=options, timeout=timeout_s)
        except LIBRARY_ERRORS as error:
            what = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no video we read"
            raise CrossdraftError(f"{source.name} cannot be opened as live video: {what}.") from None
        stream = self._container.streams.best("video")
        if not isinstance(stream, av.VideoStream) or stream.codec_context.codec.canonical_name not in codecs:
            self.close()
            raise CrossdraftError(f"{source.name} sends no video that is read; send one of {', '.join(CODECS)}.")
        stream.codec_context.options = {**pixels, "flags": "low_delay"}
        stream.thread_type = "SLICE"  # threads for whole frames would hold frames back
        self._stream, self._name, self._limits = stream, source.name, limits
        self._upright: tuple[tuple[int, int], Upright] | None = None

    def __iter__(self) -> Iterator[tuple[float, np.ndarray]]:
        """Yield the time stamp in seconds and uint8 RGB [H, W, 3] of each frame, until the source ends or fails."""
        with suppress(*LIBRARY_ERRORS):
            for packet in self._container.demux(self._stream):
                yield from self._decoded(packet)

    def _decoded(self, packet: "av.Packet[av.VideoStream]") -> Iterator[tuple[float, np.ndarray]]:
        try:
            for frame in self._stream.codec_context.decode(packet):
                if frame.time is None or frame.is_corrupt:
                    self.damaged += 1
                else:
                    yield frame.time, np.ascontiguousarray(self._shown(frame).rgb(self._name, 0, frame))
        except LIBRARY_ERRORS:
            self.damaged += 1

    def _shown(self, frame: "av.VideoFrame") -> Upright:
        """The conversion of frames of this size."""
        size = frame.width, frame.height
        if self._upright is None or self._upright[0] != size:
            aspect = self._stream.codec_context.sample_aspect_ratio or Fraction(1)
            self._upright = size, Upright.of(self._name, frame, aspect, self._limits)
            self.notes = self._upright[1].notes
        return self._upright[1]

    def close(self) -> None:
        """Close the source; it must not be read meanwhile."""
        self._container.close()
