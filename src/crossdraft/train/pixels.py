"""Pixels for a tower: the inference normalisation, and the jitter that training adds before it."""

import torch
from torch import Tensor

from crossdraft.video.preprocess import FrameSpec, normalise


def frame_spec(size: int) -> FrameSpec:
    """How both reference models want their frames: a square of `size`, CLIP's mean and deviation."""
    return FrameSpec(size=size, crop=(size, size))


def to_pixels(frames: Tensor) -> Tensor:
    """uint8 RGB [n, F, h, w, 3] at the tower's size -> normalised float32 [n, F, 3, h, w]."""
    return normalise(frames.movedim(-1, 2), FrameSpec())


def jitter(frames: Tensor, noise: float, brightness: float, generator: torch.Generator) -> Tensor:
    """Pixel noise (std in 8-bit steps) and one brightness factor a clip: what a codec and a camera may do.

    uint8 [n, F, h, w, 3] -> the same. Half of the clips get the noise at a random strength, so that clean
    pictures stay in the training set.
    """
    clips = len(frames)
    gain = 1 + brightness * (2 * torch.rand(clips, generator=generator) - 1)
    strength = noise * (torch.rand(clips, generator=generator) - 0.5).clamp_min(0) * 2
    shaken = frames.float() * gain.view(-1, 1, 1, 1, 1)
    shaken += strength.view(-1, 1, 1, 1, 1) * torch.randn(frames.shape, generator=generator)
    return shaken.round_().clamp_(0, 255).to(torch.uint8)
