"""Pixels for a tower: the inference normalisation, and the jitter that training adds before it."""

import torch
from torch import Tensor

from crossdraft.train.reference.recipe import Jitter
from crossdraft.video.preprocess import FrameSpec, normalise


def frame_spec(size: int) -> FrameSpec:
    """How both reference models want their frames: a square of `size`, CLIP's mean and deviation."""
    return FrameSpec(size=size, crop=(size, size))


def to_pixels(frames: Tensor) -> Tensor:
    """uint8 RGB [n, F, h, w, 3] at the tower's size -> normalised float32 [n, F, 3, h, w]."""
    return normalise(frames.movedim(-1, 2), FrameSpec())


def shake(frames: Tensor, jitter: Jitter, generator: torch.Generator) -> Tensor:
    """What codecs, cameras and sensors may do to clips, uint8 [n, F, h, w, 3] -> the same.

    Every clip draws its own strengths. Half of the clips get no pixel noise, so that clean pictures stay in the
    training set; what a translation uncovers repeats the border.
    """
    if jitter.noise or jitter.brightness:
        frames = _noisy(frames, jitter, generator)
    if jitter.drop:
        kept = torch.rand(frames.shape[:-1], generator=generator)
        share = jitter.drop * torch.rand(len(frames), generator=generator)
        frames = frames.masked_fill((kept < share.view(-1, 1, 1, 1))[..., None], 255)
    if jitter.shift:
        frames = torch.stack([_shifted(clip, jitter.shift, generator) for clip in frames])
    return frames


def _noisy(frames: Tensor, jitter: Jitter, generator: torch.Generator) -> Tensor:
    clips = len(frames)
    gain = 1 + jitter.brightness * (2 * torch.rand(clips, generator=generator) - 1)
    strength = jitter.noise * (torch.rand(clips, generator=generator) - 0.5).clamp_min(0) * 2
    shaken = frames.float() * gain.view(-1, 1, 1, 1, 1)
    shaken += strength.view(-1, 1, 1, 1, 1) * torch.randn(frames.shape, generator=generator)
    return shaken.round_().clamp_(0, 255).to(torch.uint8)


def _shifted(clip: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """[F, h, w, 3] moved by up to `most` pixels each way."""
    down, right = torch.randint(-most, most + 1, (2,), generator=generator).tolist()
    rows = (torch.arange(clip.shape[1]) - down).clamp_(0, clip.shape[1] - 1)
    columns = (torch.arange(clip.shape[2]) - right).clamp_(0, clip.shape[2] - 1)
    return clip[:, rows][:, :, columns]
