"""Cars, vans, buses and trucks, as seen from behind or from the front."""

import numpy as np

from crossdraft_lab.scenes.camera import Floats
from crossdraft_lab.scenes.palette import RGB, scaled
from crossdraft_lab.scenes.sketch import Anchor, Sketch, disc, outline, quads

_TYRE: RGB = (22, 22, 24)
_GLASS: RGB = (48, 58, 70)
_TRIM: RGB = (34, 34, 38)
_TAIL_LAMP: RGB = (150, 22, 22)
_HEAD_LAMP: RGB = (255, 250, 225)
_PLATE: RGB = (225, 225, 215)
_FRAME: RGB = (205, 205, 205)

WIDTH_M = {"car": 1.85, "van": 2.05, "bus": 2.6, "truck": 2.6}


def draw_vehicle(sketch: Sketch, kind: str, paint: RGB, anchor: Anchor, oncoming: bool = False) -> None:
    """Paint a vehicle whose nearer end stands at `anchor`. Lamps never change: they tell no motion."""
    half = WIDTH_M[kind] / 2
    sketch.body(_shadow(half), anchor, (26, 26, 28))
    for wheel in (-half + 0.05, half - 0.33):
        sketch.body(quads((wheel, 0.0, wheel + 0.28, 0.5)), anchor, _TYRE)
    _flank(sketch, kind, paint, anchor)
    _BODIES[kind](sketch, paint, anchor)
    _lamps(sketch, kind, anchor, oncoming)


def _shadow(half: float) -> Floats:
    corners = [(-half - 0.15, 0, -0.3), (half + 0.15, 0, -0.3), (half + 0.05, 0, 1.2), (-half - 0.05, 0, 1.2)]
    return np.array([corners], dtype=np.float32)


def _flank(sketch: Sketch, kind: str, paint: RGB, anchor: Anchor) -> None:
    """The side that faces the camera's axis, in shade."""
    if abs(anchor.across_m) < 0.3:
        return
    side = -float(np.sign(anchor.across_m)) * WIDTH_M[kind] / 2
    low, high, length = {"car": (0.3, 0.9, 3.6), "van": (0.35, 2.2, 4.0)}.get(kind, (0.5, 3.0, 7.0))
    corners = [(side, low, 0), (side, high, 0), (side, high, length), (side, low, length)]
    sketch.body(np.array([corners], dtype=np.float32), anchor, scaled(paint, 0.72))


def _car(sketch: Sketch, paint: RGB, anchor: Anchor) -> None:
    sketch.body(outline((-0.72, 0.88), (0.72, 0.88), (0.56, 1.46), (-0.56, 1.46)), anchor, paint)
    sketch.body(outline((-0.58, 0.93), (0.58, 0.93), (0.47, 1.36), (-0.47, 1.36)), anchor, _GLASS)
    body = [(-0.92, 0.3), (0.92, 0.3), (0.92, 0.78), (0.8, 0.92), (-0.8, 0.92), (-0.92, 0.78)]
    sketch.body(outline(*body), anchor, paint)
    sketch.body(quads((-0.92, 0.26, 0.92, 0.4)), anchor, _TRIM)


def _van(sketch: Sketch, paint: RGB, anchor: Anchor) -> None:
    body = [(-1.02, 0.35), (1.02, 0.35), (1.02, 2.1), (0.85, 2.35), (-0.85, 2.35), (-1.02, 2.1)]
    sketch.body(outline(*body), anchor, paint)
    sketch.body(quads((-0.84, 1.4, -0.08, 2.1), (0.08, 1.4, 0.84, 2.1)), anchor, _GLASS)
    sketch.body(quads((-0.03, 0.42, 0.03, 2.2)), anchor, _TRIM)
    sketch.body(quads((-1.02, 0.3, 1.02, 0.46)), anchor, _TRIM)


def _bus(sketch: Sketch, paint: RGB, anchor: Anchor) -> None:
    body = [(-1.3, 0.35), (1.3, 0.35), (1.3, 2.95), (1.1, 3.2), (-1.1, 3.2), (-1.3, 2.95)]
    sketch.body(outline(*body), anchor, paint)
    sketch.body(quads((-1.12, 1.5, 1.12, 2.5)), anchor, _GLASS)
    sketch.body(quads((-0.7, 2.68, 0.7, 3.02)), anchor, (250, 244, 190), glow=True)
    sketch.body(quads((-1.3, 0.3, 1.3, 0.5)), anchor, _TRIM)


def _truck(sketch: Sketch, paint: RGB, anchor: Anchor) -> None:
    sketch.body(quads((-1.3, 0.95, 1.3, 3.5)), anchor, _FRAME)
    sketch.body(quads((-1.14, 1.1, -0.06, 3.34), (0.06, 1.1, 1.14, 3.34)), anchor, paint)
    sketch.body(quads((-0.72, 1.1, -0.6, 3.34), (0.6, 1.1, 0.72, 3.34)), anchor, _FRAME)
    sketch.body(quads((-1.2, 0.62, 1.2, 0.76)), anchor, _FRAME)


_BODIES = {"car": _car, "van": _van, "bus": _bus, "truck": _truck}


def _lamps(sketch: Sketch, kind: str, anchor: Anchor, oncoming: bool) -> None:
    out = WIDTH_M[kind] / 2
    height = {"car": 0.66, "van": 0.8, "bus": 0.85, "truck": 0.86}[kind]
    if oncoming:
        for across in (-out + 0.28, out - 0.28):
            sketch.body(disc(across, 0.62, 0.2, 8), anchor, _HEAD_LAMP, glow=True)
        return
    pair = quads(
        (-out + 0.06, height - 0.1, -out + 0.4, height + 0.1), (out - 0.4, height - 0.1, out - 0.06, height + 0.1)
    )
    sketch.body(pair, anchor, _TAIL_LAMP)
    sketch.body(quads((-0.26, 0.46, 0.26, 0.6)), anchor, _PLATE)
