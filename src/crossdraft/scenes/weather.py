"""What falls from the sky, and what hangs in it."""

import numpy as np

from crossdraft.scenes.palette import RGB
from crossdraft.scenes.scene import Scene
from crossdraft.scenes.shapes import Paint, Sketch, disc

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
        spots = [
            disc(rng.uniform(-105, 105), rng.uniform(32, 84), rng.uniform(0.45, 0.8), 4)
            for _ in range(_STARS)
        ]
        sketch.road(np.concatenate(spots) + far, (200, 205, 225), 1.0, glow=True)
    colour = {"day": (255, 246, 200), "dusk": (255, 196, 120), "night": (236, 236, 220)}[scene.time]
    sketch.road(disc(across, height, 7.0, 16) + far, colour, 1.0, glow=True)


def falling(scene: Scene, times_s: np.ndarray) -> list[Paint]:
    """Rain streaks or snow flakes in picture axes; nothing in other weather."""
    rng = np.random.default_rng([scene.seed, 6])
    t = np.asarray(times_s)[:, None]
    bright = {"day": 1.0, "dusk": 0.86, "night": 0.58}[scene.time]
    if scene.weather == "rain":
        start, speed = rng.random((2, _DROPS)), rng.uniform(1.5, 2.1, _DROPS)
        down = (start[0] + speed * t) % 1.25 - 0.15
        across = start[1] - 0.10 * down
        length, width = 0.058, 0.0042
        steps = np.array([(0, 0), (width, 0), (width - 0.1 * length, length), (-0.1 * length, length)])
        colour = _RAIN
    elif scene.weather == "snow":
        start, speed = rng.random((2, _FLAKES)), rng.uniform(0.28, 0.5, _FLAKES)
        down = (start[0] + speed * t) % 1.1 - 0.05
        across = start[1] + 0.02 * np.sin(2 * np.pi * (t + start[0]))
        size = rng.uniform(0.007, 0.0125, (_FLAKES, 1, 1))
        steps = size * np.array([(-0.7, -0.7), (0.7, -0.7), (0.7, 0.7), (-0.7, 0.7)])
        colour = _SNOW
    else:
        return []
    corners = np.stack([across, down], -1)[:, :, None, :] + steps
    return [Paint(corners.astype(np.float32), (colour[0] * bright, colour[1] * bright, colour[2] * bright))]
