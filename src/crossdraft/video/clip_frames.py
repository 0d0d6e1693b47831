"""Frames of a clip, wherever they came from: nothing here reads a file, or needs PyAV."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crossdraft.checks import described
from crossdraft.errors import CrossdraftError

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


def given_pixels(value: Any, axes: int, what: str, instead: str) -> "Tensor":
    """Pixels that were given as an array, a tensor or lists, which are taken as they are: uint8 [..., H, W, 3].

    Args:
        axes: 4 of a clip's frames, 3 of an image.
        what: they are, in the complaint.
        instead: what to give, in the complaint.

    Raises:
        CrossdraftError: they are of another type or shape, or empty.
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
