"""Frames to a vision tower's input, in pure torch; the same numbers as HF's (PIL) image processors.

uint8 in, resized as uint8 with antialiasing (as PIL does), centre-cropped, scaled and normalised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from crossdraft.errors import CrossdraftError

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """How a vision tower wants its frames.

    Args:
        size: the shortest edge to resize to (aspect kept), or an exact (height, width), or None: not resized.
        crop: centre crop (height, width) after resizing; None: no crop.
        mean, std: per channel, in units of the rescaled pixel.
        rescale: factor on the 8-bit value before normalising.
        resample: "bicubic" or "bilinear", both antialiased.
    """

    size: int | tuple[int, int] | None = 224
    crop: tuple[int, int] | None = (224, 224)
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    rescale: float = 1 / 255
    resample: str = "bicubic"


def preprocess(frames: Tensor, spec: FrameSpec) -> Tensor:
    """uint8 RGB [F, H, W, 3] -> float32 [F, 3, h, w]."""
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise CrossdraftError(f"Frames are {frames.dtype} {list(frames.shape)}; give uint8 RGB [F, H, W, 3].")
    pixels = resize(frames.movedim(-1, 1), spec.size, spec.resample)
    return normalise(centre_crop(pixels, spec.crop), spec)


def resize(pixels: Tensor, size: int | tuple[int, int] | None, resample: str) -> Tensor:
    """uint8 [F, 3, H, W] -> uint8 [F, 3, h, w]; an int is the shortest edge, the other one is rounded down."""
    height, width = pixels.shape[-2:]
    if isinstance(size, int):
        short, long = min(height, width), max(height, width)
        other = int(size * long / short)
        size = (size, other) if height <= width else (other, size)
    if size is None or size == (height, width):
        return pixels
    return F.interpolate(pixels, size=size, mode=resample, antialias=True, align_corners=False)


def centre_crop(pixels: Tensor, crop: tuple[int, int] | None) -> Tensor:
    """[F, 3, H, W] -> [F, 3, *crop]; a frame smaller than the crop is padded with black, as HF does."""
    if crop is None:
        return pixels
    height, width = pixels.shape[-2:]
    pad_h, pad_w = max(crop[0] - height, 0), max(crop[1] - width, 0)
    if pad_h or pad_w:
        pixels = F.pad(pixels, (-(-pad_w // 2), pad_w // 2, -(-pad_h // 2), pad_h // 2))
    top, left = (pixels.shape[-2] - crop[0]) // 2, (pixels.shape[-1] - crop[1]) // 2
    return pixels[..., top : top + crop[0], left : left + crop[1]]


def normalise(pixels: Tensor, spec: FrameSpec) -> Tensor:
    """uint8 [F, 3, h, w] -> float32, (pixel * rescale - mean) / std."""
    mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (spec.mean, spec.std))
    return (pixels.float() * spec.rescale - mean) / std
