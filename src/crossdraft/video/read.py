"""Reading frames of a video: all of them as a stream, or some spread evenly over the clip.

The header is not trusted: frames, pixels and seconds are counted while decoding, and a clip whose header states a wrong
length is decoded a second time with the counted length.
"""

import logging
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.clip_frames import ClipFrames
from crossdraft.video.container import LIBRARY_ERRORS, claims, is_small, opened
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from torch import Tensor

log = logging.getLogger(__name__)

REORDERED = 8  # frames by which time stamps may be out of order
MIN_GAP_S = 1.5e-6  # least gap between frames, so that they differ in whole µs, too


def read_frames(
    path: str | os.PathLike[str], num_frames: int = 8, limits: VideoLimits = DEFAULT_LIMITS
) -> tuple["Tensor", np.ndarray]:
    """Frames and times of `sample_frames`; its notes are logged as warnings."""
    sample = sample_frames(path, num_frames, limits)
    for note in sample.notes:
        log.warning(note)
    return sample.frames, sample.times_s


def sample_frames(
    path: str | os.PathLike[str], num_frames: int = 8, limits: VideoLimits = DEFAULT_LIMITS
) -> ClipFrames:
    """Sample frames evenly, first and last included: numbers `linspace(0, N - 1, num_frames)`, rounded down.

    N is the number of frames that can be decoded; if the header counts many more, a note says so. A clip shorter than
    `num_frames` repeats frames, each of which is held once. Frames come as stored: a rotation in the header is ignored.

    Raises:
        CrossdraftError: missing, empty, not a video, beyond a limit, or no frame can be decoded.
    """
    return sample_arrays(path, num_frames, limits).to_frames()


@dataclass(frozen=True, slots=True)
class FrameArrays:
    """`ClipFrames` without torch, for a process that only decodes; with the clip's length as the header states it."""

    pixels: np.ndarray
    times_s: np.ndarray
    notes: tuple[str, ...] = ()
    indices: np.ndarray | None = None
    seconds: float = 0.0

    def to_frames(self) -> ClipFrames:
        """Convert to tensors, which share the arrays' memory."""
        import torch  # only needed here

        indices = None if self.indices is None else torch.from_numpy(self.indices)
        return ClipFrames(torch.from_numpy(self.pixels), self.times_s, self.notes, indices)


def sample_arrays(
    path: str | os.PathLike[str], num_frames: int = 8, limits: VideoLimits = DEFAULT_LIMITS
) -> FrameArrays:
    """Sample frames as `sample_frames` does, as arrays."""
    if not 1 <= num_frames <= limits.frames:
        raise CrossdraftError(f"num_frames is {num_frames}; ask for 1 to {limits.frames} frames.")
    kept, count, claimed, seconds = _sample(path, num_frames, None, limits)
    notes = _damage(path, count, claimed)
    wanted = _even_indices(count, num_frames)
    if not kept.indices.keys() >= set(wanted):  # the header was wrong, but now the frames are counted
        del kept  # before the same amount is held again
        kept, again, *_ = _sample(path, num_frames, count, limits)
        if again != count:
            raise CrossdraftError(f"{path} changed while it was being read; wait until it is written.")
    indices = np.array([kept.indices[number] for number in wanted], dtype=np.int64)
    once = np.array_equal(indices, np.arange(len(kept.times_s)))
    times_s = np.array(kept.times_s, dtype=np.float64)[indices]
    return FrameArrays(kept.pixels[: len(kept.times_s)], times_s, notes, None if once else indices, seconds)


def iter_frames(
    path: str | os.PathLike[str], limits: VideoLimits = DEFAULT_LIMITS
) -> Generator[tuple[float, np.ndarray], None, None]:
    """Stream a clip: (seconds since the first frame, uint8 RGB [H, W, 3]), times strictly increasing.

    Raises:
        CrossdraftError: as `read_frames`; a limit may be reached after frames have been yielded.
    """
    with opened(path, limits) as (container, stream):
        info, count = claims(path, container, stream, limits), 0
        for time_s, frame in _timed(path, _decoded(container, stream, limits), info.fps, limits):
            yield time_s, _rgb(path, count, frame)
            count += 1
        for note in _damage(path, count, stream.frames):
            log.warning(note)


def _even_indices(count: int, num_frames: int) -> list[int]:
    return np.linspace(0, count - 1, num_frames, dtype=int).tolist() if count > 0 else []


@dataclass(slots=True)
class _Kept:
    """Frames of a clip in one array [n, H, W, 3], as far as they have come; `indices` by number in the clip."""

    pixels: np.ndarray = field(default_factory=lambda: np.empty((0, 1, 1, 3), np.uint8))
    times_s: list[float] = field(default_factory=list)
    indices: dict[int, int] = field(default_factory=dict)


def _sample(
    path: str | os.PathLike[str], num_frames: int, total: int | None, limits: VideoLimits
) -> tuple[_Kept, int, int, float]:
    """Decode the whole clip; keep the frames wanted if it has `total`.

    `total=None` uses the header's number. Also returns the number of frames, and the header's number and seconds.
    """
    kept, count = _Kept(), 0
    with opened(path, limits) as (container, stream):
        info = claims(path, container, stream, limits)
        keep = set(_even_indices(total or info.frames, num_frames))
        for time_s, frame in _timed(path, _decoded(container, stream, limits), info.fps, limits):
            if count in keep:
                if not kept.indices:
                    limits.check_held(path, len(keep), frame.width, frame.height)
                    kept.pixels = np.empty((len(keep), frame.height, frame.width, 3), np.uint8)
                kept.indices[count] = len(kept.times_s)
                kept.pixels[kept.indices[count]] = _rgb(path, count, frame)
                kept.times_s.append(time_s)
            count += 1
        return kept, count, stream.frames, info.seconds


def _rgb(path: object, index: int, frame: "VideoFrame") -> np.ndarray:
    try:
        return frame.to_ndarray(format="rgb24", threads=1 if is_small(frame) else 0)
    except LIBRARY_ERRORS:
        raise CrossdraftError(
            f"Frame {index} of {path} has colours that FFmpeg cannot turn into RGB; re-encode it as yuv420p, bt709."
        ) from None


def _damage(path: object, count: int, claimed: int) -> tuple[str, ...]:
    """Note for a clip that lacks many of the frames in its header; one missing frame is common in whole files."""
    if count == 0:
        raise CrossdraftError(f"Not one frame of {path} can be decoded: it is empty, cut off or broken.")
    if claimed - count <= max(1, claimed // 100):
        return ()
    return (f"{path} is cut off or damaged: only {count} of its {claimed} frames can be read.",)


def _timed(
    path: object, frames: Iterable["VideoFrame"], fps: float, limits: VideoLimits
) -> Iterator[tuple[float, "VideoFrame"]]:
    """Yield every frame with its time, and check the limits."""
    size, first, time_s, pixels = None, 0.0, 0.0, 0
    for index, (stamp, frame) in enumerate(_in_stamp_order(frames, fps)):
        if index == 0:
            size, first = (frame.width, frame.height), stamp
        elif stamp - first > time_s + MIN_GAP_S:
            time_s = stamp - first
        else:  # time stamps of a broken file may not rise
            time_s += max(1 / fps, 2 * MIN_GAP_S)
        pixels += frame.width * frame.height
        limits.check(path, width=frame.width, height=frame.height, frames=index + 1, seconds=time_s, decoded=pixels)
        if size != (frame.width, frame.height):
            raise CrossdraftError(f"{path} changes size at frame {index}; re-encode it at one size.")
        yield time_s, frame


def _in_stamp_order(frames: Iterable["VideoFrame"], fps: float) -> Iterator[tuple[float, "VideoFrame"]]:
    """Yield frames with their times in seconds, which never fall.

    Decoders yield frames in display order. With B-frames, and a container that does not keep that order (AVI, some
    mp4), the times come in storage order, 1 2 3 5 4 6: so the next few times are sorted.
    """
    held: deque[VideoFrame] = deque()
    stamps: list[float] = []
    last = -1 / fps
    for frame in frames:
        last = last + 1 / fps if frame.time is None else frame.time  # a broken file may lack a time
        held.append(frame)
        heappush(stamps, last)
        if len(held) > REORDERED:
            yield heappop(stamps), held.popleft()
    while held:
        yield heappop(stamps), held.popleft()


def _decoded(container: "InputContainer", stream: "VideoStream", limits: VideoLimits) -> Iterator["VideoFrame"]:
    """Yield frames that can be decoded, skipping damaged packets, until the file cannot be read further."""
    # A frame has at most two packets (fields); a forged index may list endless ones that never decode.
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
