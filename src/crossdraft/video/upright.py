"""Frames as players show them: in square pixels, and turned as the video's header asks."""

import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.container import LIBRARY_ERRORS, is_small
from crossdraft.video.limits import VideoLimits

if TYPE_CHECKING:
    from av import VideoFrame

TURNS = {
    (False, 1, 1): "", (True, -1, 1): "turned by 90° clockwise", (False, -1, -1): "turned by 180°",
    (True, 1, -1): "turned by 90° anticlockwise",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Upright:
    """Conversion of a clip's frames to RGB.

    The width of what is shown is scaled until pixels are square, the height stays, as with ffplay and with FFmpeg's
    `scale=iw*sar:ih`. Of a turn by other angles the nearest quarter is taken.
    """

    width: int
    height: int
    swapped: bool  # rows become columns
    across: int  # -1 if columns come in reverse order, after `swapped`; else 1
    down: int  # the same of rows
    notes: tuple[str, ...]  # one if frames are not shown as they are stored

    @classmethod
    def of(cls, path: object, frame: "VideoFrame", aspect: Fraction, limits: VideoLimits) -> "Upright":
        """Conversion of a clip whose first frame is `frame`, with pixels `aspect` as wide as high.

        Raises:
            CrossdraftError: scaled frames are beyond the limits.
        """
        a, b, c, d = _display_matrix(frame)
        swapped = abs(b) + abs(c) > abs(a) + abs(d)
        across, down = (-1 if one < 0 else 1 for one in ((c, b) if swapped else (a, d)))
        width, height = (frame.height, frame.width) if swapped else (frame.width, frame.height)
        shown = max(1, round(width * (1 / aspect if swapped else aspect)))
        limits.check(path, width=shown, height=height, frames=1, seconds=0)
        how = [TURNS.get((swapped, across, down), "mirrored")]
        how += [f"at {shown}x{height}, in square pixels"] * (shown != width)
        said = f"{path} is shown {' and '.join(filter(None, how))}, as its header asks; an event recording of the same "
        notes = (f"{said}view must be shown likewise.",) if any(how) else ()
        return cls(shown, height, swapped, across, down, notes)

    def rgb(self, path: object, index: int, frame: "VideoFrame") -> np.ndarray:
        """Convert a frame to uint8 RGB [H, W, 3], perhaps a view with steps below 0.

        Raises:
            CrossdraftError: FFmpeg cannot convert its colours.
        """
        size = (self.height, self.width) if self.swapped else (self.width, self.height)
        smooth = None if size == (frame.width, frame.height) else "BICUBIC"  # FFmpeg's default for scaling
        given = {"width": size[0], "height": size[1], "interpolation": smooth, "threads": 1 if is_small(frame) else 0}
        try:
            pixels = frame.to_ndarray(format="rgb24", **given)
        except LIBRARY_ERRORS:
            raise CrossdraftError(
                f"Frame {index} of {path} has colours that FFmpeg cannot turn into RGB; re-encode it as yuv420p, bt709."
            ) from None
        return (pixels.swapaxes(0, 1) if self.swapped else pixels)[:: self.down, :: self.across]


def _display_matrix(frame: "VideoFrame") -> tuple[float, float, float, float]:
    """Return a, b, c, d, by which (x, y) is shown at (a·x + c·y, b·x + d·y), of a frame's display matrix."""
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # the frame has other side data, of a kind that PyAV does not know
        angle = math.radians(frame.rotation)
        return math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
    a, b, _, c, d = (1, 0, 0, 0, 1) if matrix is None else struct.unpack_from("=5i", matrix)
    return a, b, c, d
