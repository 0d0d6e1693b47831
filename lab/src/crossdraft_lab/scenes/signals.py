"""Traffic lights and signs on their poles."""

import numpy as np

from crossdraft_lab.scenes.camera import Floats
from crossdraft_lab.scenes.palette import LAMP, RGB
from crossdraft_lab.scenes.sketch import Anchor, Sketch, disc, outline, quads

_POLE: RGB = (120, 122, 126)
_HOUSING: RGB = (24, 24, 26)
_BOARD: RGB = (222, 222, 220)
_SIGN_RED: RGB = (200, 24, 30)
_WHITE: RGB = (246, 246, 246)
_BLACK: RGB = (18, 18, 18)

_LIGHT_CENTRE_M = 4.0
_SIGN_CENTRE_M = 3.5


def draw_light(sketch: Sketch, state: str, anchor: Anchor) -> None:
    """A light with three lamps. Lit or not, all have the same luma: which is lit shows in colour only."""
    sketch.body(quads((-0.07, 0, 0.07, 2.6)), anchor, _POLE)
    middle = _LIGHT_CENTRE_M
    sketch.body(quads((-0.58, middle - 1.32, 0.58, middle + 1.32)), anchor, _BOARD)
    sketch.body(quads((-0.48, middle - 1.22, 0.48, middle + 1.22)), anchor, _HOUSING)
    for name, height in (("red", 0.8), ("yellow", 0.0), ("green", -0.8)):
        lamp = LAMP[name] if name == state else LAMP["unlit"]
        sketch.body(disc(0.0, middle + height, 0.37, 10), anchor, lamp, glow=True)


def draw_sign(sketch: Sketch, kind: str, anchor: Anchor) -> None:
    """A stop (red octagon), yield (white triangle, red rim) or speed limit (white disc, red rim) sign."""
    sketch.body(quads((-0.06, 0, 0.06, 2.6)), anchor, _POLE)
    _SIGNS[kind](sketch, anchor)


def _stop(sketch: Sketch, anchor: Anchor) -> None:
    sketch.body(disc(0, _SIGN_CENTRE_M, 0.92, 8), anchor, _WHITE)
    sketch.body(disc(0, _SIGN_CENTRE_M, 0.8, 8), anchor, _SIGN_RED)
    sketch.body(quads((-0.55, _SIGN_CENTRE_M - 0.17, 0.55, _SIGN_CENTRE_M + 0.17)), anchor, _WHITE)


def _triangle(size: float) -> Floats:
    middle = _SIGN_CENTRE_M + 0.05
    return outline((-0.95 * size, middle + 0.62 * size), (0.95 * size, middle + 0.62 * size), (0, middle - 1.05 * size))


def _yield(sketch: Sketch, anchor: Anchor) -> None:
    sketch.body(_triangle(1.08), anchor, _SIGN_RED)
    inner = _triangle(0.6)
    inner[..., 1] += np.float32(0.06)
    sketch.body(inner, anchor, _WHITE)


def _speed_limit(sketch: Sketch, anchor: Anchor) -> None:
    middle = _SIGN_CENTRE_M
    sketch.body(disc(0, middle, 0.9, 16), anchor, _SIGN_RED)
    sketch.body(disc(0, middle, 0.66, 16), anchor, _WHITE)
    for left in (-0.4, 0.08):
        sketch.body(quads((left, middle - 0.34, left + 0.32, middle + 0.34)), anchor, _BLACK)
        sketch.body(quads((left + 0.1, middle - 0.22, left + 0.22, middle + 0.22)), anchor, _WHITE)


_SIGNS = {"stop": _stop, "yield": _yield, "speed limit": _speed_limit}
