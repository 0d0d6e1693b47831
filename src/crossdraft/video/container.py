"""Opening a video file safely, and reading its header.

PyAV never sees a user's string, which it would also take as a URL, and never guesses a format, because some
formats open further files: it gets our own file handle and a container chosen by the first bytes. Containers,
codecs and the pixels of a frame are limited before anything is decoded.

A header may be wrong: `probe` reports it and refuses impossible values, `read` counts while decoding.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from crossdraft.errors import CrossdraftError
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

try:
    import av
except ImportError as error:
    raise CrossdraftError("Videos are read and written by PyAV; install it with `pip install av`.") from error


CODECS = ("h264", "hevc", "mpeg4", "mpeg1video", "mpeg2video", "vp8", "vp9", "av1", "mjpeg")
DECODERS = (*CODECS, "libdav1d", "libvpx", "libvpx-vp9")  # FFmpeg's names of the decoders for these codecs

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


@contextmanager
def opened(path: str | os.PathLike[str], limits: VideoLimits) -> Iterator[tuple["InputContainer", "VideoStream"]]:
    """Open a container; yield it with its main video stream, ready to decode.

    Raises:
        CrossdraftError: missing, empty, not a video, or in a container or codec that is not supported.
    """
    name = Path(path)
    with _file(name) as file:
        container_format = sniff(file, name)
        # FFmpeg decodes a little while it opens a file, so it gets the limits here.
        options = {"codec_whitelist": ",".join(DECODERS), "max_pixels": str(limits.pixels)}
        try:
            container = av.open(file, "r", format=container_format, options=options, metadata_errors="replace")
        except LIBRARY_ERRORS:
            raise CrossdraftError(
                f"{name} cannot be opened as a video: its index is broken or missing, as in a file cut off; "
                "copy it again or re-encode it."
            ) from None
        with container:
            stream = _main_stream(container, name, limits)
            # A frame may turn out larger than the header says; FFmpeg then refuses it before allocating.
            stream.codec_context.options = {"max_pixels": str(limits.pixels)}
            # For small frames, threads cost more than they save, in particular beside other decoders.
            stream.thread_type = "NONE" if is_small(stream.codec_context) else "AUTO"
            yield container, stream


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
    head = file.read(12)
    file.seek(0)
    if not head:
        raise CrossdraftError(f"{name} is empty; copy the video again.")
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"):
        return "mov"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:] == b"AVI ":
        return "avi"
    if head[:4] == b"\0\0\1\xba":
        return "mpeg"
    if head[:4] == b"\0\0\1\xb3":
        return "mpegvideo"
    raise CrossdraftError(f"{name} is not a video we read; give an mp4, mov, mkv, webm, avi or mpeg file.")


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


__all__ = ["av"]


def probe(path: str | os.PathLike[str], limits: VideoLimits = DEFAULT_LIMITS) -> VideoInfo:
    """Read a video's header, without decoding the video.

    Raises:
        CrossdraftError: missing, empty, not a video, in a container or codec that is not supported, or with values
            in its header beyond a limit.
    """
    with opened(path, limits) as (container, stream):
        return claims(path, container, stream, limits)


def claims(name: object, container: "InputContainer", stream: "VideoStream", limits: VideoLimits) -> VideoInfo:
    """Read the header of an opened video; raise CrossdraftError if it states a value beyond a limit."""
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
