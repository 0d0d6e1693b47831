"""A recording as one picture of many small frames, which a page shows in time with the clip."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt, shown_in
from crossdraft.events.frames import WHITE, eventgpt_frames
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.stream import Newest

COLUMNS = 8
SIDE = 240  # largest number of pixels of a frame's longer side
MOST_FRAMES = 96
MOST_EVENTS = 16_000_000  # the newest events are drawn; earlier frames stay white


def event_strip(path: Path, seconds: float, frames: int, limits: EventLimits = DEFAULT_LIMITS) -> NDArray[np.uint8]:
    """Draw frames of equal duration for the part of a recording that a clip shows.

    Args:
        path: the recording.
        seconds: length of the clip; 0 = unknown: draw all of the recording.
        frames: number of frames, a multiple of COLUMNS.

    Returns:
        uint8 [frames / COLUMNS * h, COLUMNS * w, 3], RGB: row by row, white where there were no events.

    Raises:
        CrossdraftError: the recording cannot be read, holds no events, or does not overlap with the clip in time.
    """
    recording = Excerpt(path, limits=limits)
    first = recording.first_time()
    if first is None:
        raise CrossdraftError(f"{path} holds no events; send a recording of the clip's moment.")
    shown = shown_in(recording, first, seconds)
    events = shown.read(Newest(most=MOST_EVENTS))
    start = shown.start_us or 0
    end = shown.end_us or (int(events.t[-1]) + 1 if len(events) else start + 1)
    cuts = np.linspace(start, end, frames + 1).astype(np.int64)
    scale = min(1.0, SIDE / max(events.width, events.height))
    width, height = max(1, round(events.width * scale)), max(1, round(events.height * scale))
    found = np.full((frames // COLUMNS, height, COLUMNS, width, 3), WHITE, np.uint8)
    for index in range(frames):
        part = events.slice(int(cuts[index]), int(cuts[index + 1]))
        if len(part):
            frame = cv2.resize(eventgpt_frames(part, 1)[0], (width, height), interpolation=cv2.INTER_AREA)
            found[index // COLUMNS, :, index % COLUMNS] = frame
    return found.reshape(-1, COLUMNS * width, 3)
