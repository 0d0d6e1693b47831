"""Frames out of a video: all of them as a stream, or a few spread evenly over the clip.

Nothing here trusts the header. Frames, pixels and seconds are counted while decoding, and a clip whose header
lies about its length is decoded a second time with the counted length.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.container import LIBRARY_ERRORS, opened
from crossdraft.video.header import claims
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from torch import Tensor

log = logging.getLogger(__name__)


def read_frames(
    path: str | os.PathLike[str], num_frames: int = 8, limits: VideoLimits = DEFAULT_LIMITS
) -> tuple["Tensor", np.ndarray]:
    """Sample frames evenly, first and last included: numbers `linspace(0, N - 1, num_frames)`, rounded down.

    N is the number of frames that really decode; where the header counts more, a warning is logged. A clip
    shorter than `num_frames` repeats frames. Frames come as stored: a rotation in the header is ignored.

    Returns:
        frames uint8 RGB [F, H, W, 3] (torch) and their times float64 [F], in seconds since the first frame.

    Raises:
        CrossdraftError: missing, empty, not a video, beyond a limit, or not one frame decodes.
    """
    import torch  # nothing else in reading needs it

    if not 1 <= num_frames <= limits.frames:
        raise CrossdraftError(f"num_frames is {num_frames}; ask for 1 to {limits.frames} frames.")
    found, count = _sample(path, num_frames, None, limits)
    wanted = _spread(count, num_frames)
    if not found.keys() >= set(wanted):  # the header lied, but now we have counted
        found, again = _sample(path, num_frames, count, limits)
        if again != count:
            raise CrossdraftError(f"{path} changed while it was being read; wait until it is written.")
    times_s = np.array([found[index][0] for index in wanted], dtype=np.float64)
    return torch.from_numpy(np.stack([found[index][1] for index in wanted])), times_s


def iter_frames(
    path: str | os.PathLike[str], limits: VideoLimits = DEFAULT_LIMITS
) -> Iterator[tuple[float, np.ndarray]]:
    """Stream a clip: (seconds since the first frame, uint8 RGB [H, W, 3]), times strictly increasing.

    Raises:
        CrossdraftError: as `read_frames`; a limit may be met after frames have been given out.
    """
    with opened(path, limits) as (container, stream):
        info, count = claims(path, container, stream, limits), 0
        for time_s, frame in _timed(path, _decoded(container, stream, limits), info.fps, limits):
            yield time_s, _rgb(path, count, frame)
            count += 1
        _report(path, count, stream.frames)


def _spread(count: int, num_frames: int) -> list[int]:
    return np.linspace(0, count - 1, num_frames, dtype=int).tolist() if count > 0 else []


def _sample(
    path: str | os.PathLike[str], num_frames: int, total: int | None, limits: VideoLimits
) -> tuple[dict[int, tuple[float, np.ndarray]], int]:
    """Decode the whole clip; count its frames and keep (time, pixels) of those wanted if it has `total`.

    `total` None takes the header's word.
    """
    found, count = {}, 0
    with opened(path, limits) as (container, stream):
        info = claims(path, container, stream, limits)
        keep = set(_spread(total or info.frames, num_frames))
        for time_s, frame in _timed(path, _decoded(container, stream, limits), info.fps, limits):
            if count in keep:
                found[count] = time_s, _rgb(path, count, frame)
            count += 1
        if total is None:
            _report(path, count, stream.frames)
    return found, count


def _rgb(path: object, index: int, frame: "VideoFrame") -> np.ndarray:
    try:
        return frame.to_ndarray(format="rgb24")
    except LIBRARY_ERRORS:
        raise CrossdraftError(
            f"Frame {index} of {path} has colours that FFmpeg cannot turn into RGB; re-encode it as yuv420p, bt709."
        ) from None


def _report(path: object, count: int, claimed: int) -> None:
    if count == 0:
        raise CrossdraftError(f"Not one frame of {path} can be decoded: it is empty, cut off or broken.")
    if count < claimed:
        log.warning("%s is cut off or damaged: only %d of its %d frames can be read.", path, count, claimed)


def _timed(
    path: object, frames: Iterable["VideoFrame"], fps: float, limits: VideoLimits
) -> Iterator[tuple[float, "VideoFrame"]]:
    """Every frame with its time, held to the limits."""
    size, first, time_s = None, 0.0, 0.0
    for index, frame in enumerate(frames):
        stamp = frame.time
        if index == 0:
            size, first = (frame.width, frame.height), stamp or 0.0
        elif stamp is not None and stamp - first > time_s:
            time_s = stamp - first
        else:  # in a broken file a stamp may be missing or step back
            time_s += 1 / fps
        limits.check(path, width=frame.width, height=frame.height, frames=index + 1, seconds=time_s)
        if size != (frame.width, frame.height):
            raise CrossdraftError(f"{path} changes size at frame {index}; re-encode it at one size.")
        yield time_s, frame


def _decoded(
    container: "InputContainer", stream: "VideoStream", limits: VideoLimits
) -> Iterator["VideoFrame"]:
    """Whatever decodes, past damaged packets, until the file cannot be read on."""
    # A frame is at most two packets (fields); a forged index may list endless ones that never decode.
    packets = islice(container.demux(stream), 2 * limits.frames + 2)
    while True:
        try:
            packet = next(packets, None)
        except LIBRARY_ERRORS:
            packet = None
        try:
            # The demuxer ends with an empty packet, which flushes the decoder; so does None, if it broke off.
            frames = stream.codec_context.decode(packet)
        except LIBRARY_ERRORS:
            frames = []
        yield from frames
        if packet is None:
            return
