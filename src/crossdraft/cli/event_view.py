"""Event frames in a terminal, two pixels a character: half blocks in colour, or shades without."""

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import groupby, islice

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.style import Style
from rich.text import Text

SHADES = " ░▒▓█"
LEVELS = 16  # of a colour, so that few styles are made
PRINTED = 3  # frames that are printed where nothing can be played


def show(frames: Iterable[NDArray[np.uint8]], fps: float, speed: float, console: Console) -> None:
    """Play event frames at their rate until they or the user (Ctrl-C) end; elsewhere than in a terminal, print a few.

    A frame that comes late is left out, but one is drawn for each frame's time that passes.

    Args:
        frames: uint8 RGB [H, W, 3] on white, each of `speed / fps` seconds; from a file, or a source that is live.
        fps: frames a second.
        speed: seconds of the recording for each second.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        for number, frame in enumerate(islice(frames, PRINTED)):
            console.print(picture(frame, number * speed / fps, console))
        return
    begun, drawn = time.monotonic(), -1 / fps
    with Live(console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        for number, frame in enumerate(frames):
            now = time.monotonic() - begun
            if now > (number + 1) / fps and now < drawn + 1 / fps:
                continue
            time.sleep(max(0.0, number / fps - now))
            live.update(picture(frame, number * speed / fps, console), refresh=True)
            drawn = time.monotonic() - begun


def picture(frame: NDArray[np.uint8], seconds: float, console: Console) -> Group:
    """Draw a frame as large as the console holds, with its time under it; the darkest pixel gets full colour."""
    height, width = frame.shape[:2]
    scale = min(1.0, console.width / width, 2 * max(1, console.height - 2) / height)
    size = max(1, int(width * scale)), 2 * max(1, round(height * scale / 2))
    colour = cv2.resize(255 - frame.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    colour /= float(colour.max()) or 1.0  # 0 = white, 1 = the channel is dark
    caption = Text(f"{seconds:.3f} s")
    if console.no_color or console.color_system is None:
        shades = np.rint(colour.max(-1).reshape(-1, 2, size[0]).mean(1) * (len(SHADES) - 1)).astype(int)
        return Group(*(Text("".join(SHADES[one] for one in row)) for row in shades), caption)
    levels = (LEVELS - 1 - np.rint(colour * (LEVELS - 1)).astype(int)).tolist()
    lines = [Text() for _ in range(0, size[1], 2)]
    for line, upper, lower in zip(lines, levels[::2], levels[1::2], strict=True):
        for halves, run in groupby(zip(map(tuple, upper), map(tuple, lower), strict=True)):
            line.append("▀" * len(list(run)), _style(*halves))
    return Group(*lines, caption)


@lru_cache(LEVELS**3)
def _style(upper: tuple[int, ...], lower: tuple[int, ...]) -> Style:
    above, below = (f"rgb({','.join(str(255 * one // (LEVELS - 1)) for one in half)})" for half in (upper, lower))
    return Style.parse(f"{above} on {below}")
