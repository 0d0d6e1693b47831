"""Event frames as files: PNG images, and films of equal-time frames."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.frames import WHITE, eventgpt_frames
from crossdraft.events.stream import Events, concatenate
from crossdraft.files import atomic_path

MAX_FILM_FRAMES = 200_000  # over two hours at 25 frames a second


def write_pngs(folder: str | os.PathLike[str], frames: Iterable[NDArray[np.uint8]]) -> list[Path]:
    """Write RGB frames as frame_0.png, frame_1.png, … into a folder, made if absent."""
    paths = []
    for index, frame in enumerate(frames):
        path = Path(folder) / f"frame_{index}.png"
        fine, encoded = cv2.imencode(".png", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        if not fine:
            raise CrossdraftError(f"Frame {index} of shape {list(frame.shape)} cannot be encoded as PNG.")
        with atomic_path(path) as temporary:
            temporary.write_bytes(encoded.tobytes())
        paths.append(path)
    return paths


def film(chunks: Iterable[Events], fps: float) -> Iterator[NDArray[np.uint8]]:
    """Yield frames of 1/fps seconds of events each, see `film_frame`.

    Raises:
        CrossdraftError: an extreme fps, or a chunk up to which the film would be longer than MAX_FILM_FRAMES; raised
            before any of its frames is drawn.
    """
    if not 0.001 <= fps <= 1e6:
        raise CrossdraftError(f"fps is {fps:g}; give a rate of 0.001 to a million frames per second of the recording.")
    yield from map(film_frame, spans(_short_enough(chunks, fps), 1e6 / fps))


def film_frame(part: Events) -> NDArray[np.uint8]:
    """Draw one frame of a film: uint8 RGB [H, W, 3], white without events, sides padded to even."""
    frame = eventgpt_frames(part, 1)[0] if len(part) else np.full((part.height, part.width, 3), WHITE, np.uint8)
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), constant_values=WHITE)


def _short_enough(chunks: Iterable[Events], fps: float) -> Iterator[Events]:
    """Pass chunks on; refuse a gap between two clocks, as from 0 to the Unix epoch, which would make endless frames."""
    start: int | None = None
    for chunk in chunks:
        if len(chunk):
            start = chunk.t0 if start is None else start
            seconds = (chunk.t0 + chunk.duration_us - start) / 1e6
            if seconds * fps > MAX_FILM_FRAMES:
                raise CrossdraftError(
                    f"The events span {seconds:.0f} s, which is {seconds * fps:.0f} frames at {fps:g} a second, and a "
                    f"film holds {MAX_FILM_FRAMES}; take a part (start_us=…, end_us=…) or fewer frames a second "
                    "(fps=…)."
                )
        yield chunk


def spans(chunks: Iterable[Events], span_us: float) -> Iterator[Events]:
    """Cut consecutive chunks into consecutive spans of equal time, from the first event to the last."""
    held: Events | None = None
    start, index = 0, 0
    for chunk in chunks:
        if held is None or not len(held):
            start = chunk.t0 if index == 0 else start
            held = chunk
        else:
            held = concatenate([held, chunk])
        while len(held) and held.t[-1] >= (end := start + round((index + 1) * span_us)):
            part = held.slice(start, end)
            yield part
            held = held.take(slice(len(part), None))
            index += 1
    if held is not None and len(held):
        yield held
