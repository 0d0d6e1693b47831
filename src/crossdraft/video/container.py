"""Opening a video file safely, and reading its header.

PyAV never sees a user's string, which it would also take as a URL, and never guesses a format, because some
formats open further files: it gets our own file handle and a container chosen by the first bytes. Containers,
codecs and the pixels of a frame are limited before anything is decoded.

A header may be wrong: `probe` reports it and refuses impossible values, `read` counts while decoding.
"""

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video import animation
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

try:
    import av
except ImportError as error:
    raise CrossdraftError("Videos are read and written by PyAV; install it with `pip install av`.") from error


CODECS = ("h264", "hevc", "mpeg4", "mpeg1video", "mpeg2video", "vp8", "vp9", "av1", "mjpeg", "gif")
DECODERS = (*CODECS, "libdav1d", "libvpx", "libvpx-vp9")  # FFmpeg's names of the decoders for these codecs

FIRST_BYTES = {
    b"\x1a\x45\xdf\xa3": "matroska", b"\0\0\1\xba": "mpeg", b"\0\0\1\xb3": "mpegvideo", b"GIF8": "gif"
}  # fmt: skip

# What PyAV may raise on broken bytes: its own errors and these ordinary ones.
_ORDINARY = (OSError, ArithmeticError, LookupError, ValueError, RuntimeError, MemoryError)
LIBRARY_ERRORS = (av.FFmpegError, *_ORDINARY)
SMALL_PIXELS = 1 << 17
FALLBACK_FPS = 25.0  # where a header names no rate


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """A video's properties, as its header states them.

    `frames` is seconds × fps where the header does not count, and like `seconds` 0 where it says nothing.
    """

    width: int
    height: int
    frames: int
    fps: float
    seconds: float
    codec: str


@dataclass(frozen=True, slots=True)
class OpenedClip:
    """A video file that is open, with its frames in the order of display, decoded as they are taken."""

    info: VideoInfo
    counted: int  # frames that the header counts; 0 = it counts none
    aspect: Fraction  # width of a pixel over its height
    frames: Iterator["VideoFrame"]
    expected_times: Callable[[], np.ndarray]  # [n], as the header tells, or the packets if it states no one rate


@contextmanager
def opened(path: str | os.PathLike[str], limits: VideoLimits) -> Iterator[OpenedClip]:
    """Open a video file and read its header.

    Raises:
        CrossdraftError: missing, empty, not a video, in a container or codec that is not supported, or with values in
            its header beyond a limit.
    """
    name = Path(path)
    with _file(name) as file:
        if (container_format := sniff(file, name)) == "webp":
            yield _animation(name, file, limits)
            return
        with _open(name, file, container_format, limits) as container:
            stream = _main_stream(container, name, limits)
            # A frame may turn out larger than the header says; FFmpeg then refuses it before allocating.
            stream.codec_context.options = {"max_pixels": str(limits.pixels)}
            # For small frames, threads cost more than they save, in particular beside other decoders.
            stream.thread_type = "NONE" if is_small(stream.codec_context) else "AUTO"
            info, counted = _info(name, container, stream, limits), stream.frames
            even = counted > 0 and stream.average_rate == stream.base_rate
            aspect, frames = stream.sample_aspect_ratio or Fraction(1), _decoded(container, stream, limits)
            yield OpenedClip(
                info, counted, aspect, frames,
                lambda: np.arange(counted) if even else _packet_times(name, container_format, limits),
            )  # fmt: skip


def _open(name: Path, file: BinaryIO, container_format: str, limits: VideoLimits) -> "InputContainer":
    # FFmpeg decodes a little while it opens a file, so it gets the limits here.
    options = {"codec_whitelist": ",".join(DECODERS), "max_pixels": str(limits.pixels)}
    try:
        return av.open(file, "r", format=container_format, options=options, metadata_errors="replace")
    except LIBRARY_ERRORS:
        raise CrossdraftError(
            f"{name} cannot be opened as a video: its index is broken or missing, as in a file cut off; "
            "copy it again or re-encode it."
        ) from None


def _animation(name: Path, file: BinaryIO, limits: VideoLimits) -> OpenedClip:
    width, height, begins = animation.read_header(file, limits.frames)
    count, seconds = len(begins) - 1, begins[-1] / animation.MILLI
    limits.check(name, width=width, height=height, frames=count, seconds=seconds)
    info = VideoInfo(width, height, count, count / seconds if seconds else FALLBACK_FPS, seconds, "webp")
    file.seek(0)
    frames = animation.decoded(file, begins)
    return OpenedClip(info, count, Fraction(1), frames, lambda: np.array(begins[:-1]) / animation.MILLI)


def is_small(frame: "VideoCodecContext | VideoFrame") -> bool:
    """True if frames are so small that one thread decodes and converts them fastest."""
    return frame.width * frame.height <= SMALL_PIXELS


def _file(name: Path) -> BinaryIO:
    try:
        if name.is_dir():
            raise CrossdraftError(f"{name} is a folder; give the video file itself.")
        if not name.is_file():
            raise CrossdraftError(f"There is no video file at {name}; check the path.")
        return name.open("rb")
    except OSError as error:
        raise CrossdraftError(f"Cannot read {name}: {error.strerror}.") from None


def sniff(file: BinaryIO, name: Path) -> str:
    """Find FFmpeg's name for the container by the first bytes; leave the file at its start."""
    head = file.read(animation.HEAD)
    file.seek(0)
    if not head:
        raise CrossdraftError(f"{name} is empty; copy the video again.")
    found = next((kind for first, kind in FIRST_BYTES.items() if head.startswith(first)), None)
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"):
        found = "mov"
    elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        found = "avi"
    elif animation.is_animation(head):
        found = "webp"
    if found is None:
        raise CrossdraftError(
            f"{name} is not a video we read; give an mp4, mov, mkv, webm, avi, mpeg, GIF or animated WebP file."
        )
    return found


def _main_stream(container: "InputContainer", name: Path, limits: VideoLimits) -> "VideoStream":
    stream = container.streams.best("video")  # skips cover pictures
    if not isinstance(stream, av.VideoStream):
        raise CrossdraftError(f"{name} holds no video stream; give a file with pictures in it.")
    context = stream.codec_context
    if context is None:
        raise CrossdraftError(f"{name} does not say how its frames are coded: it is cut off or broken; copy it again.")
    codec = context.codec.canonical_name
    if codec not in CODECS:
        source, copy = shlex.quote(str(name)), shlex.quote(f"{name.stem}-h264.mp4")
        raise CrossdraftError(
            f"{name} uses the codec {codec}, which is not read (for safety, {', '.join(CODECS)} alone are); make a "
            f"copy: ffmpeg -i {source} -c:v libx264 -pix_fmt yuv420p {copy}"
        )
    if context.width < 1 or context.height < 1:  # not stated, or so large that FFmpeg refused it
        raise CrossdraftError(
            f"{name} has frames of no known size, or above the limit of {limits.pixels:,} pixels; scale it down."
        )
    return stream


def probe(path: str | os.PathLike[str], limits: VideoLimits = DEFAULT_LIMITS) -> VideoInfo:
    """Read a video's header, without decoding the video.

    Raises:
        CrossdraftError: missing, empty, not a video, in a container or codec that is not supported, or with values
            in its header beyond a limit.
    """
    with opened(path, limits) as clip:
        return clip.info


def _info(name: object, container: "InputContainer", stream: "VideoStream", limits: VideoLimits) -> VideoInfo:
    """Read the header; raise CrossdraftError if it states a value beyond a limit."""
    context = stream.codec_context
    fps = float(stream.average_rate or stream.guessed_rate or 0) or FALLBACK_FPS
    seconds = _seconds(container, stream)
    limits.check(name, width=context.width, height=context.height, frames=stream.frames, seconds=seconds)
    frames = stream.frames or round(seconds * fps)
    return VideoInfo(context.width, context.height, frames, fps, seconds, context.codec.canonical_name)


def _seconds(container: "InputContainer", stream: "VideoStream") -> float:
    if container.format.name == "mpegvideo":  # a bare stream, whose length FFmpeg guesses badly from the bit rate
        return 0.0
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / 1e6


def _decoded(container: "InputContainer", stream: "VideoStream", limits: VideoLimits) -> Iterator["VideoFrame"]:
    """Yield frames that can be decoded, skipping damaged packets, until the file cannot be read further."""
    for packet in _packets(container, stream, limits):
        try:
            # The demuxer ends with an empty packet, which flushes the decoder; so does None, if it broke off.
            frames = stream.codec_context.decode(packet)
        except LIBRARY_ERRORS:
            frames = []
        yield from frames


def _packets(
    container: "InputContainer", stream: "VideoStream", limits: VideoLimits
) -> Iterator["Packet[VideoStream] | None"]:
    """Yield packets until the file cannot be read further, then `None`."""
    # A frame has at most two packets (fields); a forged index may list endless ones that never decode.
    packets = islice(container.demux(stream), 2 * limits.frames + 2)
    packet: Packet[VideoStream] | None = None
    while True:
        try:
            packet = next(packets, None)
        except LIBRARY_ERRORS:
            packet = None
        yield packet
        if packet is None:
            return


def _packet_times(name: Path, container_format: str, limits: VideoLimits) -> np.ndarray:
    """Times in seconds, rising from 0; if packets have none, their numbers."""
    with _file(name) as file, _open(name, file, container_format, limits) as container:
        stream = _main_stream(container, name, limits)
        packets = (packet for packet in _packets(container, stream, limits) if packet is not None and packet.size)
        stamps = [packet.dts if packet.pts is None else packet.pts for packet in packets]
        known = sorted(stamp for stamp in stamps if stamp is not None)
        if len(known) < len(stamps) or not known:
            return np.arange(len(stamps))
        return (np.array(known) - known[0]) * float(stream.time_base or 1)
