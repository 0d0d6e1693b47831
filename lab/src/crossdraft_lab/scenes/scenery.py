"""The ground, the road with its marks, houses, trees and fences along it, and the sky: sun, stars, rain, snow."""

import numpy as np
from numpy.typing import NDArray

from crossdraft_lab.scenes.camera import Camera, Floats
from crossdraft_lab.scenes.palette import RGB, scaled
from crossdraft_lab.scenes.scene import Scene
from crossdraft_lab.scenes.sketch import Sketch, disc, quads, strip

_ASPHALT: RGB = (74, 76, 80)
_WET_ASPHALT: RGB = (58, 62, 70)
_MARK: RGB = (238, 238, 232)
_KERB: RGB = (176, 174, 168)
_GRASS: RGB = (118, 158, 84)
_FIELD: RGB = (196, 184, 98)
_PAVING: RGB = (158, 154, 148)
_SNOW: RGB = (226, 230, 236)
_WALLS: tuple[RGB, ...] = ((198, 172, 146), (178, 128, 106), (172, 176, 182), (214, 204, 178), (146, 136, 134))
_WINDOW: RGB = (70, 84, 104)
_LIT_WINDOW: RGB = (255, 222, 140)
_TRUNK: RGB = (92, 66, 46)
_LEAVES: tuple[RGB, ...] = ((48, 98, 50), (64, 116, 56), (38, 84, 48))
_POST: RGB = (232, 226, 212)

_FAR_M = 70.0
_DASH_M, _DASH_PERIOD_M = 2.6, 6.0
_CROSSING_M = 15.0

# Road edges (left, right) and lane lines, across in metres: we drive between -1.75 and 1.75.
_EDGES = {"three-lane": (-5.4, 5.4)}
_LINES = {"three-lane": (-1.75, 1.75)}
_OTHER_EDGES, _OTHER_LINES = (-5.4, 2.1), (-1.75,)


def _band(left: float, right: float, camera: Camera) -> Floats:
    """A strip along the whole road as one polygon, with enough corners to bend. It never needs to flow."""
    depth = np.concatenate([[-5.0], np.geomspace(5.0, _FAR_M, 12 if camera.bend else 2)])
    side = np.stack([np.full_like(depth, left), np.zeros_like(depth), depth], -1)
    back = side[::-1] + np.array([right - left, 0, 0])
    return np.concatenate([side, back])[None].astype(np.float32)


def draw_ground(sketch: Sketch, scene: Scene) -> None:
    """The land beside the road, the road, its kerbs and its marks."""
    camera = sketch.camera
    land = {"buildings": _PAVING, "trees": _GRASS, "fields": _FIELD}[scene.side]
    if scene.weather == "snow":
        land = _SNOW
    sketch.road(strip(-400, 400, -10.0, 260.0), land, 9.0)
    left, right = _EDGES.get(scene.layout, _OTHER_EDGES)
    sketch.road(_band(left - 0.35, right + 0.35, camera), _KERB, 9.0)
    asphalt = _WET_ASPHALT if scene.weather == "rain" else _ASPHALT
    sketch.road(_band(left, right, camera), asphalt, 8.0)
    if scene.layout == "crossroads":
        _draw_crossing(sketch, asphalt)
    if scene.time == "night":
        beam: RGB = (asphalt[0] * 1.7, asphalt[1] * 1.7, asphalt[2] * 1.6)
        sketch.road(_band(-1.6, 1.6, camera), beam, 8.0)
    _draw_dashes(sketch, scene)


def _draw_crossing(sketch: Sketch, asphalt: RGB) -> None:
    """A street across, and a zebra crossing before it."""
    sketch.road(strip(-90, 90, _CROSSING_M - 0.3, _CROSSING_M + 8.3), _KERB, 12.0)
    sketch.road(strip(-90, 90, _CROSSING_M, _CROSSING_M + 8.0), asphalt, 12.0)
    stripes = [strip(x, x + 0.55, _CROSSING_M - 4.6, _CROSSING_M - 1.2) for x in np.arange(-5.1, 1.9, 1.05)]
    sketch.road(np.concatenate(stripes), _MARK, 10.0)


def _draw_dashes(sketch: Sketch, scene: Scene) -> None:
    start = np.random.default_rng([scene.seed, 3]).uniform(0, _DASH_PERIOD_M)
    dashes: list[Floats] = []
    for line in _LINES.get(scene.layout, _OTHER_LINES):
        for depth in np.arange(start - 2 * _DASH_PERIOD_M, 40.0, _DASH_PERIOD_M):
            if scene.layout == "crossroads" and _CROSSING_M - 8 < depth < _CROSSING_M + 9:
                continue
            dashes.append(strip(line - 0.11, line + 0.11, depth, depth + _DASH_M))
    sketch.road(np.concatenate(dashes), _MARK, 10.0)


def draw_sides(sketch: Sketch, scene: Scene) -> None:
    """Hills far away, then houses, trees, or fences and fields, from far to near on both sides."""
    rng = np.random.default_rng([scene.seed, 4])
    _draw_hills(sketch, scene, rng)
    right_edge = _EDGES.get(scene.layout, _OTHER_EDGES)[1]
    verges = (-8.6, right_edge + 3.2)
    draw = {"buildings": _draw_houses, "trees": _draw_trees, "fields": _draw_fences}[scene.side]
    draw(sketch, scene, rng, verges)


def _draw_hills(sketch: Sketch, scene: Scene, rng: np.random.Generator) -> None:
    across = np.linspace(-170, 170, 15)
    height = rng.uniform(4, 15, across.size) * (1.5 if scene.side == "fields" else 1.0)
    top = np.stack([across, height, np.full_like(across, 190.0)], -1)
    base = np.array([(170.0, -1.0, 190.0), (-170.0, -1.0, 190.0)])
    colour = (150, 158, 168) if scene.weather == "snow" else (78, 104, 98)
    sketch.road(np.concatenate([top, base])[None].astype(np.float32), colour, 28.0)


def _free(scene: Scene, near: float, far: float) -> bool:
    """True if things from `near` to `far` leave the street across free at a crossroads."""
    return scene.layout != "crossroads" or far < _CROSSING_M - 0.5 or near > _CROSSING_M + 8.5


def _draw_houses(sketch: Sketch, scene: Scene, rng: np.random.Generator, verges: tuple[float, float]) -> None:
    for near in (46.0, 33.0, 23.5, 10.5, 1.5):
        far = near + (8.0 if near < 30 else 11.0)
        for verge in verges:
            height, wall = rng.uniform(6.0, 12.0), _WALLS[int(rng.integers(len(_WALLS)))]
            if _free(scene, near, far):
                _draw_house(sketch, scene, rng, (verge, near, far, height), wall)


def _draw_house(
    sketch: Sketch, scene: Scene, rng: np.random.Generator, box: tuple[float, float, float, float], wall: RGB
) -> None:
    verge, near, far, height = box
    middle = 0.5 * (near + far)
    along = [(verge, 0, near), (verge, height, near), (verge, height, far), (verge, 0, far)]
    outer = verge + np.sign(verge) * 14.0
    front = [(verge, 0, near), (verge, height, near), (outer, height, near), (outer, 0, near)]
    sketch.road(np.array([along], dtype=np.float32), scaled(wall, 0.8), middle)
    sketch.road(np.array([front], dtype=np.float32), wall, near)
    lit = scene.time != "day"
    rows = np.arange(1.6, height - 1.5, 2.6)
    columns = np.linspace(near + 1.0, far - 2.4, 3)
    panes = [
        [(verge, y, z), (verge, y + 1.4, z), (verge, y + 1.4, z + 1.4), (verge, y, z + 1.4)]
        for y in rows
        for z in columns
    ]
    chosen = np.array(panes, dtype=np.float32)[rng.random(len(panes)) < 0.85]
    if len(chosen):
        sketch.road(chosen, _LIT_WINDOW if lit else _WINDOW, middle, glow=lit)


def _draw_trees(sketch: Sketch, scene: Scene, rng: np.random.Generator, verges: tuple[float, float]) -> None:
    start = rng.uniform(0, 5.0)
    for near in np.arange(42.0, 1.0, -6.5):
        for verge in verges:
            depth = float(near - start + rng.uniform(-0.7, 0.7))
            across, tall = verge + rng.uniform(-0.4, 0.4), rng.uniform(0.85, 1.2)
            leaves = _LEAVES[int(rng.integers(len(_LEAVES)))]
            if not _free(scene, depth, depth):
                continue
            here = np.array([across, 0, depth], dtype=np.float32)
            sketch.road(quads((-0.2, 0, 0.2, 2.6 * tall)) + here, _TRUNK, depth)
            sketch.road(disc(0.0, 4.4 * tall, 2.3 * tall, 9) + here, leaves, depth)
            light: RGB = (leaves[0] * 1.35, leaves[1] * 1.3, leaves[2] * 1.3)
            sketch.road(disc(-0.5, 5.0 * tall, 1.3 * tall, 8) + here, light, depth)


def _draw_fences(sketch: Sketch, scene: Scene, rng: np.random.Generator, verges: tuple[float, float]) -> None:
    start = rng.uniform(0, 3.0)
    for verge in (verges[0] + 0.6, verges[1] - 0.4):
        posts = [
            quads((-0.09, 0, 0.09, 1.15)) + np.array([verge, 0, z], dtype=np.float32)
            for z in np.arange(40.0 - start, 0.0, -3.0)
            if _free(scene, float(z), float(z))
        ]
        sketch.road(np.concatenate(posts), _POST, 12.0)
        crossroads = scene.layout == "crossroads"
        gaps = [(1.0, _CROSSING_M - 1), (_CROSSING_M + 9, 40.0)] if crossroads else [(1.0, 40.0)]
        rails = [
            [(verge, y, a), (verge, y + 0.12, a), (verge, y + 0.12, b), (verge, y, b)]
            for a, b in gaps
            for y in (0.45, 0.85)
        ]
        sketch.road(np.array(rails, dtype=np.float32), _POST, 12.0)


_DROPS, _FLAKES, _STARS = 42, 46, 26
_RAIN: RGB = (160, 168, 182)
_FLAKE: RGB = (250, 250, 252)


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
        corners, colour = _flakes(rng, t), _FLAKE
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
