"""Scenes to pixels, at any size and pace: RGB for the video, luma for the event camera."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossdraft.errors import CrossdraftError
from crossdraft_lab.scenes.camera import HORIZON
from crossdraft_lab.scenes.palette import REC601, air_of, luma, sky
from crossdraft_lab.scenes.scene import DURATION_S, Scene
from crossdraft_lab.scenes.sketch import Painting
from crossdraft_lab.scenes.stage import stage

if TYPE_CHECKING:
    from crossdraft.events import Events

VIDEO_SIZE = 224
VIDEO_FPS = 24
SENSOR_SIZE = 112
EVENT_HZ = 500
LONGEST_S = 60.0

_THRESHOLD = 0.12
_SIGMA = 0.02
_SHOT_NOISE_HZ = 0.4
_LEAK_HZ = 0.05
_CUTOFF_HZ = 200.0
_REFRACTORY_US = 500.0
_SHIFT = 4
# Corners further out than this many pictures are pulled in: OpenCV's fixed-point numbers would overflow.
_FAR_OUT = 24.0
_CHUNK = 128

Colour = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Pace:
    """Mapping from the times of a recording to those of its scene.

    >>> Pace(4.0).at(np.array([0.0, 2.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    >>> Pace(4.0, begins_s=2.5).at(np.array([0.0, 2.75, 4.0])).tolist()
    [0.0, 0.25, 1.0]

    Args:
        seconds: length of the recording.
        begins_s: where the scene begins, at its own speed; before and after it all stands still. `None` = it is spread
            over the whole recording, slowed down.

    Raises:
        CrossdraftError: a recording shorter than the scene, too long to render, or one that ends before the scene does.
    """

    seconds: float = DURATION_S
    begins_s: float | None = None

    def __post_init__(self) -> None:
        if not DURATION_S <= self.seconds <= LONGEST_S:
            raise CrossdraftError(
                f"A recording lasts from {DURATION_S:g} to {LONGEST_S:g} s, not {self.seconds:g}; give such a length."
            )
        if self.begins_s is not None and not 0 <= self.begins_s <= self.seconds - DURATION_S:
            raise CrossdraftError(
                f"A scene that begins at {self.begins_s:g} s does not fit into {self.seconds:g} s; let it begin from 0 "
                f"to {self.seconds - DURATION_S:g} s."
            )

    def at(self, times_s: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """The scene's times, in 0..DURATION_S, at times of the recording."""
        times = times_s.astype(np.float64)
        if self.begins_s is None:
            return np.clip(times * (DURATION_S / self.seconds), 0, DURATION_S)
        return np.clip(times - self.begins_s, 0, DURATION_S)


ONE_SECOND = Pace()


def render(scene: Scene, times_s: ArrayLike, size: int, luma: bool = False) -> NDArray[np.uint8]:
    """Paint the scene at the given times.

    Args:
        scene: what to paint.
        times_s: [T] times in seconds, in 0..DURATION_S.
        size: width and height of the pictures.
        luma: paint Rec.601 luma instead of RGB. Colours of equal luma give equal pictures, bit for bit.

    Returns:
        uint8 [T, size, size, 3] (RGB) or [T, size, size] (luma).

    Raises:
        CrossdraftError: times outside the clip, or no list of them, or a size too small to show anything.
    """
    times = np.atleast_1d(np.asarray(times_s, dtype=np.float64))
    if times.ndim != 1 or size < 8:
        raise CrossdraftError(f"Cannot render {times.shape} times at {size} px; give a list of times and a size >= 8.")
    if not ((times >= 0) & (times <= DURATION_S)).all():
        raise CrossdraftError(f"A scene lasts from 0 to {DURATION_S:g} s; give times within.")
    background = _background(scene, size, luma)
    out = np.empty((len(times), *background.shape), dtype=np.uint8)
    out[:] = background
    # In pieces, so that the corners of 500 frames do not lie in memory at once.
    for start in range(0, len(times), _CHUNK):
        piece = slice(start, start + _CHUNK)
        _paint(out[piece], stage(scene, times[piece]), luma)
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


def _paint(pictures: NDArray[np.uint8], painting: Painting, grey: bool) -> None:
    """Paint each picture [T, size, size(, 3)] with its polygons. Pixel centres are whole numbers."""
    size = pictures.shape[1]
    pixels = np.clip(painting.points, -_FAR_OUT, _FAR_OUT) * size - 0.5
    fixed = np.rint(pixels * (1 << _SHIFT)).astype(np.int32)
    end = 0
    layers: list[tuple[int, int, int, Colour]] = []
    for paint in painting.paints:
        start, end = end, end + paint.polygons * paint.corners
        layers.append((start, end, paint.corners, _colour(paint.colour, grey)))
    for picture, points in zip(pictures, fixed, strict=True):
        for start, end, corners, colour in layers:
            polygons = [points[first : first + corners] for first in range(start, end, corners)]
            cv2.fillPoly(picture, polygons, colour, cv2.LINE_AA, _SHIFT)


def simulate_events(scene: Scene, seed: int | None = None, pace: Pace = ONE_SECOND) -> "Events":
    """Simulate the scene's events: SENSOR_SIZE square, from luma at EVENT_HZ, over the whole recording.

    Args:
        scene: what the camera looks at.
        seed: for the sensor's noise and thresholds; the scene's own seed by default.
        pace: how the scene's second fills the recording.
    """
    from crossdraft_lab.scenes.sensor import SimulatorConfig
    from crossdraft_lab.scenes.simulate import simulate

    config = SimulatorConfig(
        threshold_on=_THRESHOLD,
        threshold_off=_THRESHOLD,
        threshold_sigma=_SIGMA,
        cutoff_hz=_CUTOFF_HZ,
        leak_hz=_LEAK_HZ,
        shot_noise_hz=_SHOT_NOISE_HZ,
        refractory_us=_REFRACTORY_US,
    )
    times_us = np.arange(int(pace.seconds * EVENT_HZ)) * (1_000_000 // EVENT_HZ)
    frames = _luma_frames(scene, pace.at(times_us * 1e-6))
    return simulate(zip(times_us.tolist(), frames, strict=True), config, scene.seed if seed is None else seed)


def _luma_frames(scene: Scene, times_s: NDArray[np.float64]) -> Iterator[NDArray[np.uint8]]:
    """The sensor's pictures at rising times, in pieces; what stands still is painted once a piece."""
    for start in range(0, len(times_s), _CHUNK):
        moments, picture = np.unique(times_s[start : start + _CHUNK], return_inverse=True)
        yield from render(scene, moments, SENSOR_SIZE, luma=True)[picture]
