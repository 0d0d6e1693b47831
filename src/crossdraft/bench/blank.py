"""What a blind twin is shown: event frames without events."""

import numpy as np
from numpy.typing import NDArray

from crossdraft.models.eventgpt import EventGPTConfig


def blank_window(source: str) -> NDArray[np.uint8] | None:
    """The events of a blind twin's requests: nothing for the shipped one, which never looks, else white frames."""
    return None if source == "blind" else white_frames(EventGPTConfig.from_pretrained(source))


def white_frames(config: EventGPTConfig) -> NDArray[np.uint8]:
    """uint8 [T, s, s, 3]."""
    side = config.vision_config.image_size
    return np.full((config.num_event_frames, side, side, 3), 255, np.uint8)
