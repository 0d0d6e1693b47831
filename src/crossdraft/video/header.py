"""Look at a video before decoding it.

A header is a claim, not a fact: `probe` reports it and refuses the absurd, `read` counts while decoding.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossdraft.video.container import opened
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

FALLBACK_FPS = 25.0  # where a header names no rate


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a video's header claims.

    `frames` is seconds × fps where the header does not count, and like `seconds` 0 where it says nothing.
    """

    width: int
    height: int
    frames: int
    fps: float
    seconds: float
    codec: str


def probe(path: str | os.PathLike[str], limits: VideoLimits = DEFAULT_LIMITS) -> VideoInfo:
    """Read what a video's header claims, without decoding the video.

    Raises:
        CrossdraftError: missing, empty, not a video, of a container or codec that we do not open, or claiming
            to be beyond a limit.
    """
    with opened(path, limits) as (container, stream):
        return claims(path, container, stream, limits)


def claims(name: object, container: "InputContainer", stream: "VideoStream", limits: VideoLimits) -> VideoInfo:
    """The header of an opened video; raises CrossdraftError if it claims to be beyond a limit."""
    context = stream.codec_context
    fps = float(stream.average_rate or stream.guessed_rate or 0) or FALLBACK_FPS
    seconds = _seconds(container, stream)
    limits.check(name, width=context.width, height=context.height, frames=stream.frames, seconds=seconds)
    frames = stream.frames or round(seconds * fps)
    return VideoInfo(context.width, context.height, frames, fps, seconds, context.codec.canonical_name)


def _seconds(container: "InputContainer", stream: "VideoStream") -> float:
    if container.format.name == "mpegvideo":  # a bare stream: FFmpeg guesses from the bit rate, and badly
        return 0.0
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / 1e6
