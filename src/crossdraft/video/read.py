"""Reading frames of a video: all of them as a stream, or some at evenly spaced times.

The header is not trusted: frames, pixels and seconds are counted while decoding, and a clip whose header states a wrong
length is decoded a second time with the counted times.
"""

import logging
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.clip_frames import ClipFrames
from crossdraft.video.container import opened
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits
from crossdraft.video.upright import Upright

if TYPE_CHECKING:
    from av import VideoFrame

log = logging.getLogger(__name__)

REORDERED = 8  # frames by which time stamps may be out of order
MIN_GAP_S = 1.5e-6  # least gap between frames, so that they differ in whole µs, too


def sample_frames(
    path: str | os.PathLike[str], num_frames: int = 8, limits: VideoLimits = DEFAULT_LIMITS
) -> ClipFrames:
    """Sample frames at evenly spaced times, first and last included; see `frame_numbers`.

    They are upright and in square pixels (`Upright`), which a note says, as it says if the header counts many more
    frames than can be decoded. A clip shorter than `num_frames` repeats frames, each of which is held once.

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
    kept = _sample(path, num_frames, None, limits)
    wanted = frame_numbers(kept.times_s, num_frames)
    notes = _damage(path, len(kept.times_s), kept.counted)
    if not kept.indices.keys() >= set(wanted):  # the header was wrong, but now the frames are counted
        times_s = kept.times_s
        del kept  # before the same amount is held again
        kept = _sample(path, num_frames, times_s, limits)
        if kept.times_s != times_s:
            raise CrossdraftError(f"{path} changed while it was being read; wait until it is written.")
    indices = np.array([kept.indices[number] for number in wanted], dtype=np.int64)
    once = np.array_equal(indices, np.arange(len(kept.indices)))
    times_s = np.array(kept.times_s, dtype=np.float64)[wanted]
    pixels, notes = kept.pixels[: len(kept.indices)], (*notes, *kept.notes)
    return FrameArrays(pixels, times_s, notes, None if once else indices, kept.seconds)


def frame_numbers(times_s: "Sequence[float] | np.ndarray", num_frames: int) -> list[int]:
    """Choose frames at evenly spaced times, from the first frame's to the last frame's.

    Of each time it is the frame that a player shows then: the last one that begins at or before it. At a constant rate
    frame i of N begins at i / (N - 1) of the clip, so these are the numbers `linspace(0, N - 1, num_frames)`, rounded
    down. They are taken so wherever no frame is off by more than half a mean gap, as containers round times.

    >>> frame_numbers([0, 1, 2, 3, 4, 5, 6], 3), frame_numbers([0, 0.1, 0.2, 0.3, 2, 4], 3)
    ([0, 3, 6], [0, 4, 5])

    Args:
        times_s: [N] seconds since the first frame at which frames begin, rising.
        num_frames: number of frames.

    Returns:
        Their numbers, rising; a frame that is shown at two of the times comes twice.
    """
    if not len(times_s):
        return []
    last, end_s = len(times_s) - 1, times_s[-1]
    gap_s = end_s / max(last, 1)
    if np.abs(np.asarray(times_s) - gap_s * np.arange(last + 1)).max() <= gap_s / 2:
        return np.linspace(0, last, num_frames, dtype=int).tolist()
    return (np.searchsorted(times_s, np.linspace(0, end_s, num_frames) + MIN_GAP_S / 2, "right") - 1).tolist()


def iter_frames(
    path: str | os.PathLike[str], limits: VideoLimits = DEFAULT_LIMITS
) -> Generator[tuple[float, np.ndarray], None, None]:
    """Stream a clip: (seconds since the first frame, uint8 RGB [H, W, 3]), times strictly increasing.

    Raises:
        CrossdraftError: as `sample_frames`; a limit may be reached after frames have been yielded.
    """
    with opened(path, limits) as clip:
        upright, count = None, 0
        for time_s, frame in _timed(path, clip.frames, clip.info.fps, limits):
            if upright is None:
                upright = Upright.of(path, frame, clip.aspect, limits)
                for note in upright.notes:
                    log.warning(note)
            yield time_s, np.ascontiguousarray(upright.rgb(path, count, frame))
            count += 1
        for note in _damage(path, count, clip.counted):
            log.warning(note)


@dataclass(slots=True)
class _Kept:
    """Frames of a clip in one array [n, H, W, 3], as far as they have come; `indices` by number in the clip.

    `times_s` are those of all frames of the clip; `counted` and `seconds` are the header's.
    """

    counted: int
    seconds: float
    pixels: np.ndarray = field(default_factory=lambda: np.empty((0, 1, 1, 3), np.uint8))
    times_s: list[float] = field(default_factory=list)
    indices: dict[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _sample(path: str | os.PathLike[str], num_frames: int, times_s: list[float] | None, limits: VideoLimits) -> _Kept:
    """Decode the whole clip; keep the frames wanted if its times are `times_s`, `None` = as expected."""
    with opened(path, limits) as clip:
        kept, upright = _Kept(clip.counted, clip.info.seconds), None
        keep = set(frame_numbers(clip.expected_times() if times_s is None else times_s, num_frames))
        for time_s, frame in _timed(path, clip.frames, clip.info.fps, limits):
            count = len(kept.times_s)
            kept.times_s.append(time_s)
            if count not in keep:
                continue
            if upright is None:
                upright = Upright.of(path, frame, clip.aspect, limits)
                limits.check_held(path, len(keep), upright.width, upright.height)
                kept.pixels = np.empty((len(keep), upright.height, upright.width, 3), np.uint8)
                kept.notes = upright.notes
            kept.pixels[len(kept.indices)] = upright.rgb(path, count, frame)
            kept.indices[count] = len(kept.indices)
        return kept


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
