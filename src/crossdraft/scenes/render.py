"""Scenes to pixels, at any size: RGB for the video, luma for the event camera."""

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.scenes.camera import HORIZON
from crossdraft.scenes.palette import REC601, air_of, luma, sky
from crossdraft.scenes.scene import Scene
from crossdraft.scenes.stage import paints_of

VIDEO_SIZE = 224
VIDEO_FPS = 24
SENSOR_SIZE = 112
EVENT_HZ = 500

_SHIFT = 4
# Corners further out than this many pictures are pulled in: OpenCV's fixed-point numbers would overflow.
_FAR_OUT = 24.0
_CHUNK = 128

Colour = tuple[float, ...]
Polygons = list[list[NDArray[np.int32]]]


def render(scene: Scene, times_s: ArrayLike, size: int, luma: bool = False) -> NDArray[np.uint8]:
    """Paint the scene at the given times.

    Args:
        scene: what to paint.
        times_s: [T] times in seconds, in 0..DURATION_S.
        size: width and height of the pictures.
        luma: paint Rec.601 luma instead of RGB. Colours of equal luma give equal pictures, bit for bit.

    Returns:
        uint8 [T, size, size, 3] (RGB) or [T, size, size] (luma).
    """
    times = np.atleast_1d(np.asarray(times_s, dtype=np.float64))
    if times.ndim != 1 or size < 8:
        raise CrossdraftError(
            f"Cannot render {times.shape} times at {size} px; give a list of times and a size >= 8."
        )
    background = _background(scene, size, luma)
    out = np.empty((len(times), *background.shape), dtype=np.uint8)
    # In pieces, so that 500 frames' corners do not lie in memory at once.
    for start in range(0, len(times), _CHUNK):
        piece = times[start : start + _CHUNK]
        layers = [
            (_polygons(paint.corners, size), _colour(paint.colour, luma)) for paint in paints_of(scene, piece)
        ]
        for index in range(len(piece)):
            out[start + index] = background
            _paint(out[start + index], layers, index)
    return out


def _background(scene: Scene, size: int, grey: bool) -> NDArray[np.uint8]:
    rows = sky(air_of(scene), size, HORIZON * size)
    if grey:
        rows = rows @ np.array(REC601, dtype=np.float32)
    wide = np.repeat(np.rint(rows)[:, None], size, axis=1)
    return np.ascontiguousarray(np.clip(wide, 0, 255).astype(np.uint8))


def _colour(colour: tuple[float, float, float], grey: bool) -> Colour:
    # Rounded to a millionth first, so that equal lumas cannot part at a rounding edge.
    parts = (luma(colour),) if grey else colour
    return tuple(float(min(255, max(0, round(round(part, 6))))) for part in parts)


def _polygons(corners: NDArray[np.float32], size: int) -> Polygons:
    """Corners [T, P, V, 2] in picture axes as OpenCV's fixed-point polygons, by time. Pixel centres are whole."""
    pixels = np.clip(corners, -_FAR_OUT, _FAR_OUT) * size - 0.5
    fixed = np.rint(pixels * (1 << _SHIFT)).astype(np.int32)
    return [list(frame) for frame in fixed]


def _paint(picture: NDArray[np.uint8], layers: list[tuple[Polygons, Colour]], index: int) -> None:
    for polygons, colour in layers:
        cv2.fillPoly(picture, polygons[index], colour, cv2.LINE_AA, _SHIFT)
