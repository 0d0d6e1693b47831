"""Frames of a clip from any source: this module reads no file, and needs no PyAV."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crossdraft.checks import described
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from torch import Tensor


UNTIMED = (
    "The clip's frames came without times, so the model reads them as one a second; give a file, or their times "
    "(crossdraft.video.ClipFrames)."
)


@dataclass(frozen=True, slots=True)
class ClipFrames:
    """Frames taken from a clip at evenly spaced times; or given ones.

    Args:
        pixels: uint8 RGB [U, H, W, 3], each frame once.
        times_s: float64 [F], seconds since the first frame of the clip.
        notes: notes for the user: one sentence if many frames could not be read.
        indices: [F] indices into `pixels`, if frames repeat, as in a clip shorter than F; `None` = each once, in order.
        timed: false if frames were given without times, and `times_s` are their numbers.
    """

    pixels: "Tensor"
    times_s: np.ndarray
    notes: tuple[str, ...] = ()
    indices: "Tensor | None" = None
    timed: bool = True

    def __len__(self) -> int:
        """F, the number of requested frames."""
        return len(self.times_s)

    @property
    def frames(self) -> "Tensor":
        """uint8 RGB [F, H, W, 3]; a copy where frames repeat."""
        return self.pixels if self.indices is None else self.pixels[self.indices]


def given_pixels(value: Any, axes: int, what: str, instead: str) -> "Tensor":
    """Convert pixels given as an array, a tensor or lists to a tensor uint8 [..., H, W, 3], unchanged in value.

    Args:
        axes: number of axes: 4 for a clip's frames, 3 for an image.
        what: name of the pixels in the error.
        instead: advice in the error on what to give.

    Raises:
        CrossdraftError: the pixels have another type or shape, or are empty.
    """
    import torch
    from torch import Tensor

    try:
        found = value if isinstance(value, Tensor) else torch.as_tensor(np.require(value, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = None
    if found is None or found.dtype != torch.uint8 or found.ndim != axes or found.shape[-1] != 3 or 0 in found.shape:
        turned = found is not None and found.ndim == axes and found.shape[-3] == 3 != found.shape[-1]
        made = found if isinstance(value, list | tuple) else None
        hint = ", channels last" if turned else ""
        raise CrossdraftError(f"{what} is {described(value, made)}; give {instead}{hint}.")
    return found.cpu()
