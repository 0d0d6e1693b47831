"""Event frames as EventGPT sees them: equal-count slices, painted red and blue on white.

The rule is the release's own (`common.py` of XduSyL/EventGPT): cut the window into slices of equal event
*count* (the remainder goes to the last), and for each slice paint every event's pixel, blue when p = 0 and red
when p = 1, the later event covering the earlier. Training used another rule where both colours met in a
pixel, "red covers blue" (`overlap="red"`).
"""

from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import MAX_PAINTED
from crossdraft.events.stream import Events

Overlap = Literal["last", "red"]
Canvas = Literal["sensor"] | tuple[int, int]

WHITE = 255
# One three-byte value for each colour: assigning it at once takes half the time of three channels.
BLUE, RED = np.array([[0, 0, 255], [255, 0, 0]], np.uint8).view("V3")[:, 0]


@overload
def eventgpt_frames(
    events: Events, num_frames: int = 5, canvas: Canvas = "sensor", overlap: Overlap = "last"
) -> NDArray[np.uint8]: ...
@overload
def eventgpt_frames(
    events: Events, num_frames: int, canvas: Literal["tight"], overlap: Overlap = "last"
) -> list[NDArray[np.uint8]]: ...
def eventgpt_frames(
    events: Events, num_frames: int = 5, canvas: Canvas | Literal["tight"] = "sensor", overlap: Overlap = "last"
) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
    """Render a window of events into EventGPT's frames.

    Args:
        events: the window.
        num_frames: number of slices of equal event count.
        canvas: "sensor" (recommended), a fixed (height, width), or "tight": each frame is as small as its events allow,
            events, as the released code does, so that frames of one window may differ in size.
        overlap: event shown where several share a pixel: the "last", or a "red" one if there is any.

    Returns:
        uint8 [num_frames, H, W, 3], RGB; for canvas="tight" a list of uint8 [H_i, W_i, 3].

    Raises:
        CrossdraftError: fewer events than frames, events outside the canvas, or too many pixels to paint at once.
    """
    if num_frames < 1:
        raise CrossdraftError(f"At least one event frame is needed, not {num_frames}.")
    if overlap not in ("last", "red"):
        raise CrossdraftError(f'Overlap must be "last" or "red", not {overlap!r}.')
    if len(events) < num_frames:
        raise CrossdraftError(
            f"{len(events)} events cannot fill {num_frames} frames; take a longer window or fewer frames."
        )
    share = len(events) // num_frames
    ends = [share * (i + 1) for i in range(num_frames - 1)] + [len(events)]
    slices = [events.take(slice(share * i, end)) for i, end in enumerate(ends)]
    if canvas == "tight":
        return [_tight_frame(part, overlap) for part in slices]
    height, width = _canvas_size(canvas, events)
    _check_painted(num_frames, height, width)
    frames = np.full((num_frames, height, width, 3), WHITE, np.uint8)
    stamp = np.empty(height * width, np.int32)
    for frame, part in zip(frames, slices, strict=True):
        _paint(frame, part, overlap, stamp)
    return frames


def _canvas_size(canvas: Canvas, events: Events) -> tuple[int, int]:
    if canvas == "sensor":
        return events.height, events.width
    height, width = canvas
    right, bottom = int(events.x.max()), int(events.y.max())
    if right >= width or bottom >= height:
        raise CrossdraftError(
            f"Events reach pixel ({right}, {bottom}), outside the {width}x{height} canvas; give a larger canvas."
        )
    return height, width


def _check_painted(count: int, height: int, width: int) -> None:
    if count * height * width > MAX_PAINTED:
        raise CrossdraftError(
            f"{count} frames of {width}x{height} take {count * height * width * 3:,} bytes at once; paint at most "
            f"{MAX_PAINTED:,} pixels, so ask for fewer frames or a smaller canvas."
        )


def _tight_frame(part: Events, overlap: Overlap) -> NDArray[np.uint8]:
    shape = int(part.y.max()) + 1, int(part.x.max()) + 1
    _check_painted(1, *shape)
    frame = np.full((*shape, 3), WHITE, np.uint8)
    _paint(frame, part, overlap, np.empty(shape[0] * shape[1], np.int32))
    return frame


def _paint(frame: NDArray[np.uint8], part: Events, overlap: Overlap, stamp: NDArray[np.int32]) -> None:
    """Paint one slice into a white, contiguous [H, W, 3] frame. `stamp` is scratch memory, int32 [H*W]."""
    pixel = part.y.astype(np.int32) * np.int32(frame.shape[1]) + part.x
    red = part.p != 0
    if overlap == "last":
        latest = last_event_rows(pixel, stamp)
        pixel, red = pixel[latest], red[latest]
    # Blue before red, and each assignment writes one colour: nothing depends on the order in which numpy visits
    # repeated indices.
    flat = frame.reshape(-1).view(BLUE.dtype)
    flat[pixel[~red]] = BLUE
    flat[pixel[red]] = RED


def last_event_rows(pixel: NDArray[np.int32], stamp: NDArray[np.int32]) -> NDArray[np.intp]:
    """Rows of the events that are not covered by a later event of the same pixel.

    numpy promises no order for repeated indices in an assignment, so the result is checked:
    an event that lost to an *earlier* one writes again until there is none. Each repetition raises the stamps it
    touches, hence it ends; with today's numpy the first pass already is right.

    Args:
        pixel: flat pixel index of each event, in time order, int32 [N].
        stamp: scratch memory, int32, one cell a pixel; only touched cells are meaningful afterwards.
    """
    row = np.arange(len(pixel), dtype=np.int32)
    stamp[pixel] = row
    winner = stamp[pixel]
    while (lost := row > winner).any():
        stamp[pixel[lost]] = row[lost]
        winner = stamp[pixel]
    return np.flatnonzero(row == winner)
