"""Resize of a frame far longer than its centre crop: only the pixels that the crop keeps are ever made.

Equal to a resize of the whole frame followed by the crop, but the work follows the crop. A frame of 16x16384
pixels whose shortest edge becomes 336 would be 344064 pixels long, of which 336 are kept: 20 columns of the
source tell them all. An event frame that is cut to its own events may well be of that kind.
"""

import torch
from torch import Tensor

REACH = {"bilinear": 1.0, "bicubic": 2.0}  # of a filter to either side, in pixels of the coarser grid


def resize_kept(pixels: Tensor, size: tuple[int, int], crop: tuple[int, int], resample: str) -> Tensor:
    """uint8 [F, 3, H, W] -> uint8 [F, 3, min(h, crop h), min(w, crop w)]: the centre of a resize to `size`.

    Antialiased, axis by axis with 8 bits in between, as `resize` is. One frame at a time: the intermediate
    values are doubles, and the frames may be many.
    """
    sides = pixels.shape[-2:]
    rows, top, bottom = kept_weights(sides[0], size[0], crop[0], resample)
    columns, left, right = kept_weights(sides[1], size[1], crop[1], resample)
    rows, columns = rows.to(pixels.device), columns.to(pixels.device)
    cut = pixels[..., top:bottom, left:right]
    frames = []
    for frame in cut:
        source = frame.double()
        if vertical_first((sides[0], sides[1]), size):
            frames.append(_bytes(_bytes(rows @ source).double() @ columns.mT))
        else:
            frames.append(_bytes(rows @ _bytes(source @ columns.mT).double()))
    return torch.stack(frames)


def vertical_first(sides: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether the vertical pass comes first.

    The order shows only where the first pass overshoots 0 or 255. It is Pillow 13's; before, and in
    torchvision, the horizontal pass always comes first.
    """
    return sides[0] - size[0] > 2 * max(sides[1] - size[1], 0)


def kept_weights(side: int, size: int, crop: int, resample: str) -> tuple[Tensor, int, int]:
    """How the middle min(size, crop) pixels of an axis resized from `side` to `size` follow from the source.

    Returns:
        float64 weights [kept, stop - start], and the source pixels start…stop that they weigh.

    Example: from 4 to 8 pixels, bilinear, crop 2: the kept pixels 3 and 4 have their centres at 1.75 and 2.25
    of the source, where pixels 1 and 2 have theirs at 1.5 and 2.5: weights [[.75, .25], [.25, .75]].
    """
    kept = min(size, crop)
    scale = side / size
    blur = max(scale, 1.0)  # an enlarged picture is interpolated, a shrunk one averaged
    reach = REACH[resample] * blur
    first = (size - kept) // 2
    centres = (first + torch.arange(kept, dtype=torch.float64) + 0.5) * scale
    start = max(0, int(float(centres[0]) - reach + 0.5))
    stop = min(side, int(float(centres[-1]) + reach + 0.5))
    offsets = (torch.arange(start, stop, dtype=torch.float64) + 0.5 - centres[:, None]) / blur
    weights = _FILTERS[resample](offsets.abs())
    return weights / weights.sum(1, keepdim=True), start, stop


def _bilinear(x: Tensor) -> Tensor:
    return (1 - x).clamp_min(0)


def _bicubic(x: Tensor) -> Tensor:
    """Keys' cubic with a = -1/2, as Pillow's and torch's antialiased ones."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


_FILTERS = {"bilinear": _bilinear, "bicubic": _bicubic}


def _bytes(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)
