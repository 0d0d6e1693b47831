"""Conversion of frames to a vision encoder's input, in pure torch, equal to HF's image processors with PIL.

Results are within one 8-bit step of theirs. (For pure noise, a few values in ten million are two steps off.)
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.video.spec import FrameSpec, LongestEdge, PixelBudget, Size

MAX_ASPECT = 200  # largest aspect of a frame that is resized whole; HF's limit for a pixel budget
RESIZED = 16  # frames at once: resizing needs many times their memory
WASTE = 4  # a resized frame larger than this multiple of the crop is resized only within the crop
BAND = 64  # output pixels in one product, as each depends on few source pixels
LARGE = 1 << 25  # numbers; larger inputs are not held as doubles at once
LARGEST = 4096  # largest longest edge; HF's limit for SmolVLM
FILTER_RADIUS = {
    "bilinear": 1.0,
    "bicubic": 2.0,
    "lanczos": 3.0,
}  # reach of a filter to either side, in pixels of the coarser grid


def preprocess(frames: Tensor, spec: FrameSpec) -> Tensor:
    """uint8 RGB [F, H, W, 3] -> float32 [F, 3, h, w]: resize, centre crop, rescale, normalise.

    Raises:
        CrossdraftError: the frames have another type or shape, or are too narrow for a size without a crop.
    """
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[-1] != 3 or 0 in frames.shape:
        raise CrossdraftError(f"Frames are {frames.dtype} {list(frames.shape)}; give uint8 RGB [F, H, W, 3].")
    parts = [
        centre_crop(_squeezed(_resized_for(part, spec), spec), spec.crop)
        for part in frames.movedim(-1, 1).split(RESIZED)
    ]
    return normalise(torch.cat(parts), spec)


def _resized_for(pixels: Tensor, spec: FrameSpec) -> Tensor:
    """Resize frames [F, 3, H, W], whole or at least in the area of the centre crop."""
    height, width = pixels.shape[-2:]
    h, w = resized(height, width, spec.size)
    if spec.crop is None:
        if isinstance(spec.size, int):
            _refuse_narrow(height, width)
    elif h * w > WASTE * min(h, spec.crop[0]) * min(w, spec.crop[1]) and (h, w) != (height, width):
        return resize_kept(pixels, (h, w), spec.crop, spec.resample)
    return resize(pixels, spec.size, spec.resample)


def _squeezed(pixels: Tensor, spec: FrameSpec) -> Tensor:
    return pixels if spec.squeeze is None else resize(pixels, spec.squeeze, spec.resample)


def resized(height: int, width: int, size: Size) -> tuple[int, int]:
    """Size (height, width) of a resized frame; a longer edge is rounded down, as HF does."""
    if size is None:
        return height, width
    if isinstance(size, tuple):
        return size
    if isinstance(size, int):
        longer = int(size * max(height, width) / min(height, width))
        return (size, longer) if height <= width else (longer, size)
    if isinstance(size, LongestEdge):
        return _longest(height, width, min(size.side, LARGEST))
    return _within(height, width, size)


def _longest(height: int, width: int, side: int) -> tuple[int, int]:
    """Size by SmolVLM's rule: an odd shorter edge gets one more pixel."""
    aspect = width / height
    shorter = int(side / aspect) if width >= height else int(side * aspect)
    shorter = max(1, shorter + shorter % 2)
    return (shorter, side) if width >= height else (side, shorter)


def _within(height: int, width: int, budget: PixelBudget) -> tuple[int, int]:
    """Qwen's `smart_resize`: nearest multiples, or shrunk or grown into the budget, aspect roughly kept.

    For a clip's budget the rule is that of Qwen3-VL and GLM, which also counts frames.
    """
    step, frames = budget.multiple, budget.frames
    if frames > 1 and min(height, width) < step:
        scale = max(step / height, step / width)
        height, width = int(height * scale), int(width * scale)
    _refuse_narrow(height, width)
    sides, high = (height, width), budget.high
    if budget.frame_tokens is not None:
        each = max(min(budget.frame_tokens * step**2, high // frames), int(budget.low * 1.05))
        high = each * frames
    rounded = [round(side / step) * step for side in sides]
    filled = math.prod(rounded) * round(frames / budget.temporal) * budget.temporal
    if filled > high:
        shrink = math.sqrt(frames * height * width / high)
        rounded = [max(step, math.floor(side / shrink / step) * step) for side in sides]
    elif filled < budget.low:
        grow = math.sqrt(budget.low / (frames * height * width))
        rounded = [math.ceil(side * grow / step) * step for side in sides]
    return rounded[0], rounded[1]


def _refuse_narrow(height: int, width: int) -> None:
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise CrossdraftError(f"Frames of {width}x{height} are too narrow; crop them to {MAX_ASPECT}:1 or less.")


def resize(pixels: Tensor, size: Size, resample: str) -> Tensor:
    """Resize uint8 [F, 3, H, W] to uint8 [F, 3, h, w], antialiased, axis by axis with 8 bits in between."""
    height, width = pixels.shape[-2:]
    h, w = resized(height, width, size)
    if (h, w) == (height, width):
        return pixels
    if resample == "lanczos":  # torch has no Lanczos
        return resize_kept(pixels, (h, w), (h, w), resample)
    first = (h, width) if vertical_first((height, width), (h, w)) else (height, w)
    return _resize_axis(_resize_axis(pixels, first, resample), (h, w), resample)


def _resize_axis(pixels: Tensor, size: tuple[int, int], resample: str) -> Tensor:
    """Resize along one axis: at most one side changes."""
    if pixels.shape[-2:] == size:
        return pixels
    # torch's 8-bit kernel is ten times as fast, but its weights are too coarse where a single pixel has much weight.
    fine = math.prod(size) > math.prod(pixels.shape[-2:]) / 2
    if fine and pixels.numel() > LARGE and pixels.shape[1] > 1:  # a photo: one channel at a time
        return torch.cat([_resize_axis(channel, size, resample) for channel in pixels.split(1, 1)], 1)
    source = pixels.double() if fine else pixels
    out = F.interpolate(source, size=size, mode=resample, antialias=True, align_corners=False)
    return out.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8) if fine else out


def centre_crop(pixels: Tensor, crop: tuple[int, int] | None) -> Tensor:
    """[F, 3, H, W] -> [F, 3, *crop]; a frame smaller than the crop is padded with black, as HF does."""
    if crop is None:
        return pixels
    height, width = pixels.shape[-2:]
    missing_h, missing_w = max(crop[0] - height, 0), max(crop[1] - width, 0)
    if missing_h or missing_w:  # an odd pixel of padding goes in front
        pixels = F.pad(pixels, (-(-missing_w // 2), missing_w // 2, -(-missing_h // 2), missing_h // 2))
    top, left = (pixels.shape[-2] - crop[0]) // 2, (pixels.shape[-1] - crop[1]) // 2
    return pixels[..., top : top + crop[0], left : left + crop[1]]


def normalise(pixels: Tensor, spec: FrameSpec) -> Tensor:
    """uint8 [F, 3, h, w] -> contiguous float32, (pixel * rescale - mean) / std."""
    mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (spec.mean, spec.std))
    scaled = pixels.to(torch.float32, memory_format=torch.contiguous_format) * spec.rescale
    return scaled.sub_(mean).div_(std)


def patchify(pixels: Tensor, patch: int, merge: int, temporal: int) -> tuple[Tensor, Tensor]:
    """Cut frames into the space-time patches that a Qwen vision encoder takes.

    A patch spans `temporal` frames (the last frame repeats to fill up) and patch x patch pixels. Patches are
    ordered by time, then by blocks of merge x merge patches (which become one token), then inside the block.

    Args:
        pixels: [F, C, h, w], sides a multiple of patch * merge.

    Returns:
        [N, C * temporal * patch * patch], and the grid [1, 3] of patches: time, height, width; N = product.
    """
    channels, height, width = pixels.shape[1:]
    pixels = torch.cat([pixels, pixels[-1:].expand(-len(pixels) % temporal, -1, -1, -1)])
    t, h, w = len(pixels) // temporal, height // patch, width // patch
    cut = pixels.reshape(t, temporal, channels, h // merge, merge, patch, w // merge, merge, patch)
    rows = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, channels * temporal * patch * patch)
    return rows, torch.tensor([[t, h, w]])


def resize_kept(pixels: Tensor, size: tuple[int, int], crop: tuple[int, int], resample: str) -> Tensor:
    """Resize uint8 [F, 3, H, W] to `size`, only in its centre: uint8 [F, 3, min(h, crop h), min(w, crop w)].

    Antialiased, axis by axis with 8 bits in between, as `resize` is. One frame at a time: the intermediate
    values are doubles, and the frames may be many.
    """
    sides = pixels.shape[-2:]
    rows, top, bottom = kept_weights(sides[0], size[0], crop[0], resample)
    columns, left, right = kept_weights(sides[1], size[1], crop[1], resample)
    by_rows, by_columns = _bands(rows, pixels.device), _bands(columns, pixels.device)
    cut = pixels[..., top:bottom, left:right]
    frames = []
    for frame in cut:
        source = frame.double()
        if vertical_first((sides[0], sides[1]), size):
            frames.append(_bytes(_weighted(by_columns, _bytes(_weighted(by_rows, source)).double().mT).mT))
        else:
            frames.append(_bytes(_weighted(by_rows, _bytes(_weighted(by_columns, source.mT).mT).double())))
    return torch.stack(frames)


def _bands(weights: Tensor, device: torch.device) -> list[tuple[Tensor, int, int]]:
    """Cut weights [n, m] into bands of BAND rows; keep each band's columns from the first to the last that is not 0."""
    bands = []
    for rows in weights.split(BAND):
        weighed = rows.any(0).nonzero()
        first, last = int(weighed[0]), int(weighed[-1]) + 1
        bands.append((rows[:, first:last].to(device), first, last))
    return bands


def _weighted(bands: Sequence[tuple[Tensor, int, int]], source: Tensor) -> Tensor:
    """Product [..., n, k] of weights [n, m] in bands and a source [..., m, k]."""
    return torch.cat([weights @ source[..., first:last, :] for weights, first, last in bands], -2)


def vertical_first(sides: tuple[int, int], size: tuple[int, int]) -> bool:
    """True if the vertical pass comes first.

    The order matters only where the first pass goes beyond 0 or 255. This order is Pillow 13's; in earlier versions,
    and in torchvision, the horizontal pass always comes first.
    """
    return sides[0] - size[0] > 2 * max(sides[1] - size[1], 0)


def kept_weights(side: int, size: int, crop: int, resample: str) -> tuple[Tensor, int, int]:
    """Resize weights for the middle min(size, crop) pixels of an axis that is resized from `side` to `size`.

    Returns:
        float64 weights [kept, stop - start], and the source pixels start…stop that they weigh.

    Example: from 4 to 8 pixels, bilinear, crop 2: the kept pixels 3 and 4 have their centres at 1.75 and 2.25
    of the source, where pixels 1 and 2 have theirs at 1.5 and 2.5: weights [[.75, .25], [.25, .75]].
    """
    kept = min(size, crop)
    scale = side / size
    blur = max(scale, 1.0)  # enlarging interpolates, shrinking averages
    radius = FILTER_RADIUS[resample] * blur
    first = (size - kept) // 2
    centres = (first + torch.arange(kept, dtype=torch.float64) + 0.5) * scale
    start = max(0, int(float(centres[0]) - radius + 0.5))
    stop = min(side, int(float(centres[-1]) + radius + 0.5))
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


def _lanczos(x: Tensor) -> Tensor:
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)


_FILTERS = {"bilinear": _bilinear, "bicubic": _bicubic, "lanczos": _lanczos}


def _bytes(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)
