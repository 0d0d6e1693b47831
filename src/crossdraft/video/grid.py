"""The frames of a clip for its sliding windows: for each time of a grid, the first frame at or after it.

All windows of a stream share one grid of times, so that overlapping windows show the same frames in their overlap.
"""

import math
import os
from dataclasses import dataclass

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits
from crossdraft.video.read import FrameArrays, iter_frames

CLOSE_S = 1e-6  # times that are nearer than this count as equal
CLOSE = 1e-6  # shares of a step that are nearer than this count as equal


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Times of the windows' frames: `length_s / frames` apart within a window, with one window each `every_s`.

    A window begins at the last time of the grid that is not after `number * every_s`. The grid's step is that of the
    times within a window, or a fraction of it if windows are closer together than that.

    Args:
        every_s, length_s, frames: as in `streams.Windowing`.
    """

    every_s: float
    length_s: float
    frames: int

    @property
    def spacing_s(self) -> float:
        """Seconds between the times of a window."""
        return self.length_s / self.frames

    @property
    def step_s(self) -> float:
        """Seconds between the times of the grid: at most `every_s`, so that no two windows begin at the same time."""
        return self.spacing_s / math.ceil(self.spacing_s / self.every_s - CLOSE)

    def begins(self, number: int) -> float:
        """Time in seconds at which the window of this number begins.

        >>> grid = WindowGrid(every_s=0.4, length_s=1.0, frames=4)  # 0, 0.25, 0.5 …
        >>> [grid.begins(number) for number in range(6)]
        [0.0, 0.25, 0.75, 1.0, 1.5, 2.0]
        """
        return math.floor(number * self.every_s / self.step_s + CLOSE) * self.step_s

    def begun(self, times_s: np.ndarray) -> np.ndarray:
        """Number of windows [n] that begin at or before each of these times [n]; 0 before the first one.

        >>> WindowGrid(every_s=0.4, length_s=1.0, frames=4).begun(np.array([-0.1, 0.0, 0.3, 0.75]))
        array([0, 1, 2, 3])
        """
        reached = np.floor((times_s + CLOSE_S) / self.step_s) + 1  # number of the first time of the grid after it
        return np.maximum(0, np.ceil((reached - CLOSE) * self.step_s / self.every_s)).astype(int)

    def wants(self, before_s: float, time_s: float) -> bool:
        """True if some window shows the frame at `time_s`, given that the previous frame was at `before_s`.

        >>> grid = WindowGrid(every_s=0.5, length_s=1.0, frames=2)  # 0.5, 1, 1.5 …
        >>> [grid.wants(a, b) for a, b in [(-1, 0), (0.3, 0.4), (0.4, 0.5), (0.5, 0.7), (0.7, 1.1)]]
        [False, False, True, False, True]
        """
        first = self.spacing_s * np.arange(1, self.frames + 1)  # the times of the first window
        return bool((self.begun(time_s - first) > self.begun(before_s - first)).any())


def frames_on(
    path: str | os.PathLike[str], grid: WindowGrid, limits: VideoLimits = DEFAULT_LIMITS
) -> tuple[FrameArrays, float]:
    """Return the frames of a clip that its windows show, plus the last one, and the clip's end in seconds.

    Raises:
        CrossdraftError: as `iter_frames`, or there are more frames than may be held.
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
