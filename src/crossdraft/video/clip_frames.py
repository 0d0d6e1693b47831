"""Frames of a clip, wherever they came from: nothing here reads a file, or needs PyAV."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClipFrames:
    """Frames taken evenly from a clip.

    Args:
        pixels: uint8 RGB [U, H, W, 3], each frame once.
        times_s: float64 [F], seconds since the first frame of the clip.
        notes: what whoever asks about the clip should know: one sentence if much of it could not be read.
        indices: [F] of `pixels`, where frames repeat, as a clip shorter than F does; `None` = each once, in order.
    """

    pixels: "Tensor"
    times_s: np.ndarray
    notes: tuple[str, ...] = ()
    indices: "Tensor | None" = None

    def __len__(self) -> int:
        """F, how many frames were asked for."""
        return len(self.times_s)

    @property
    def frames(self) -> "Tensor":
        """uint8 RGB [F, H, W, 3]; a copy where frames repeat."""
        return self.pixels if self.indices is None else self.pixels[self.indices]
