"""Fewer frames of a clip than the target sees."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from crossdraft.engine.target import Prompt
from crossdraft.errors import CrossdraftError

PIXELS = "pixel_values_videos"  # [1, frames, 3, h, w]


def evenly(total: int, count: int) -> list[int]:
    """First and last included, as `read_frames` does it; a single one from the middle.

    >>> evenly(8, 2), evenly(8, 3), evenly(8, 1), evenly(2, 3)
    ([0, 7], [0, 3, 7], [3], [0, 0, 1])
    """
    if count == 1:
        return [(total - 1) // 2]
    return np.linspace(0, total - 1, count).astype(int).tolist()


def fewer_frames(prompt: Prompt, count: int) -> Prompt:
    """The prompt with `count` of its frames, evenly spread; what its ids say of frames is not looked at.

    Raises:
        CrossdraftError: it holds no frames side by side.
    """
    pixels = prompt.features.get(PIXELS)
    if not isinstance(pixels, Tensor) or pixels.ndim != 5:
        raise CrossdraftError(
            "A glance needs a target that sees a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do."
        )
    chosen = torch.tensor(evenly(pixels.shape[1], count))
    return replace(prompt, features={**prompt.features, PIXELS: pixels[:, chosen]})
