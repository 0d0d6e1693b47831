"""The frames of a clip that sliding windows of it show: of each time of a grid the first frame at or after it."""

import os
from dataclasses import dataclass

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits
from crossdraft.video.read import FrameArrays, iter_frames

CLOSE_S = 1e-6  # times that are nearer than this are the same


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """The times for which windows have frames: `length_s / frames` apart in each, and one window each `every_s`.

    Args:
        every_s, length_s, frames: as in `streams.Windowing`.
    """

    every_s: float
    length_s: float
    frames: int

    def wants(self, before_s: float, time_s: float) -> bool:
        """Whether some window shows the frame at `time_s`, where the one before it was at `before_s`.

        >>> grid = WindowGrid(every_s=0.5, length_s=1.0, frames=2)  # 0.5, 1, 1.5 …
        >>> [grid.wants(a, b) for a, b in [(-1, 0), (0.3, 0.4), (0.4, 0.5), (0.5, 0.7), (0.7, 1.1)]]
        [False, False, True, False, True]
        """
        first = self.length_s * np.arange(1, self.frames + 1) / self.frames  # the times of the first window
        until = np.floor((time_s + CLOSE_S - first) / self.every_s)  # the last window that has such a time by then
        already = np.floor((before_s + CLOSE_S - first) / self.every_s)
        return bool((np.maximum(until, -1) > np.maximum(already, -1)).any())


def frames_on(
    path: str | os.PathLike[str], grid: WindowGrid, limits: VideoLimits = DEFAULT_LIMITS
) -> tuple[FrameArrays, float]:
    """The frames of a clip that its windows show, and the last one; and when the clip ends, in seconds.

    Raises:
        CrossdraftError: as `iter_frames`, or they are more than may be held.
    """
    pixels: list[np.ndarray] = []
    times: list[float] = []
    last: tuple[float, np.ndarray] | None = None
    before_s, gap_s = -1.0, 0.0
    for time_s, frame in iter_frames(path, limits):
        if grid.wants(before_s, time_s):
            height, width = frame.shape[:2]
            limits.check_held(path, len(pixels) + 2, width, height)
            pixels.append(frame)
            times.append(time_s)
        gap_s = 0.0 if last is None else time_s - last[0]
        before_s, last = time_s, (time_s, frame)
    if last is None:
        raise CrossdraftError(f"Not one frame of {path} can be decoded: it is empty, cut off or broken.")
    if not times or times[-1] != last[0]:
        pixels.append(last[1])
        times.append(last[0])
    return FrameArrays(np.stack(pixels), np.array(times)), last[0] + gap_s
