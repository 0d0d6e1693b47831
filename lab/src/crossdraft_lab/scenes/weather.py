"""Rain, snow, sun, moon and stars."""

import numpy as np
from numpy.typing import NDArray

from crossdraft_lab.scenes.palette import RGB, scaled
from crossdraft_lab.scenes.scene import Scene
from crossdraft_lab.scenes.sketch import Sketch, disc

_DROPS, _FLAKES, _STARS = 42, 46, 26
_RAIN: RGB = (160, 168, 182)
_SNOW: RGB = (250, 250, 252)


def draw_heavens(sketch: Sketch, scene: Scene) -> None:
    """A sun by day, a moon and stars by night, where the sky is clear."""
    if scene.weather != "clear":
        return
    rng = np.random.default_rng([scene.seed, 5])
    # High in the middle, between the traffic light and the sign.
    across, height = rng.uniform(-22, 22), rng.uniform(58, 70)
    far = np.array([0, 0, 190.0], dtype=np.float32)
    if scene.time == "night":
        spots = [disc(rng.uniform(-105, 105), rng.uniform(32, 84), rng.uniform(0.45, 0.8), 4) for _ in range(_STARS)]
        sketch.road(np.concatenate(spots) + far, (200, 205, 225), 1.0, glow=True)
    colour = {"day": (255, 246, 200), "dusk": (255, 196, 120), "night": (236, 236, 220)}[scene.time]
    sketch.road(disc(across, height, 7.0, 16) + far, colour, 1.0, glow=True)


def draw_falling(sketch: Sketch, scene: Scene) -> None:
    """Rain streaks or snow flakes before everything else; nothing in other weather."""
    rng, t = np.random.default_rng([scene.seed, 6]), sketch.camera.times[:, None]
    bright = {"day": 1.0, "dusk": 0.86, "night": 0.58}[scene.time]
    if scene.weather == "rain":
        corners, colour = _streaks(rng, t), _RAIN
    elif scene.weather == "snow":
        corners, colour = _flakes(rng, t), _SNOW
    else:
        return
    sketch.flat(corners.astype(np.float32), scaled(colour, bright))


def _streaks(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    start, speed = rng.random((2, _DROPS)), rng.uniform(1.5, 2.1, _DROPS)
    down = (start[0] + speed * t) % 1.25 - 0.15
    across = start[1] - 0.10 * down
    length, width = 0.058, 0.0042
    streak = np.array([(0, 0), (width, 0), (width - 0.1 * length, length), (-0.1 * length, length)])
    return np.stack([across, down], axis=-1)[:, :, None, :] + streak


def _flakes(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    start, speed = rng.random((2, _FLAKES)), rng.uniform(0.28, 0.5, _FLAKES)
    down = (start[0] + speed * t) % 1.1 - 0.05
    across = start[1] + 0.02 * np.sin(2 * np.pi * (t + start[0]))
    size = rng.uniform(0.007, 0.0125, (_FLAKES, 1, 1))
    flake = size * np.array([(-0.7, -0.7), (0.7, -0.7), (0.7, 0.7), (-0.7, 0.7)])
    return np.stack([across, down], axis=-1)[:, :, None, :] + flake
