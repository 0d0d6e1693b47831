"""Vehicles, people, cyclists, traffic lights and signs."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossdraft_lab.scenes.camera import Floats
from crossdraft_lab.scenes.palette import LAMP, RGB, scaled
from crossdraft_lab.scenes.sketch import Anchor, Sketch, disc, limb, outline, quads

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


_SKIN: RGB = (232, 188, 156)
_TROUSERS: RGB = (36, 38, 52)
_BICYCLE_TYRE: RGB = (20, 20, 22)
_VEST: RGB = (214, 232, 60)
_HELMET: RGB = (250, 250, 250)
_BICYCLE: RGB = (205, 205, 210)

# Larger than life, so that a leg is more than a pixel wide at the reference resolution.
_PERSON_SCALE = np.float32(1.22)
_CYCLIST_SCALE = np.float32(1.12)
_SHOULDER_M = 1.38


def _points(across: ArrayLike, height: ArrayLike) -> NDArray[np.float64]:
    return np.stack(np.broadcast_arrays(across, height), axis=-1).astype(np.float64)


def draw_person(sketch: Sketch, coat: RGB, anchor: Anchor, action: str, phase: float) -> None:
    """Paint a person in a coat who walks, stands or waves; `phase` shifts their step."""
    times = sketch.camera.times
    lean = {"to the left": -0.12, "to the right": 0.12}.get(action, 0.0)
    swing = 0.42 * np.sin(2 * np.pi * 2.0 * times + phase) if lean else np.zeros_like(times)
    stance = 0.0 if lean else 0.13
    for sign, offset in ((1, -stance), (-1, stance)):
        leg = limb(_points(offset * 0.6, 0.88), _points(sign * swing + offset, 0.06), 0.19)
        sketch.body(_PERSON_SCALE * leg, anchor, _TROUSERS)
    for side in (-1.0, 1.0):
        if action == "waving":
            hand = _points(side * 0.5 + 0.28 * np.sin(2 * np.pi * 2.5 * times + phase), 2.02)
        elif action == "standing":
            hand = _points(np.full_like(times, side * 0.33), 0.78)
        else:
            hand = _points(-side * swing * 0.8, 0.86)
        arm = limb((side * 0.2, _SHOULDER_M), hand, 0.15 if action == "waving" else 0.13)
        sketch.body(_PERSON_SCALE * arm, anchor, coat)
    top = _SHOULDER_M + 0.06
    torso = outline((-0.22, 0.8), (0.22, 0.8), (0.25 + lean, top), (-0.25 + lean, top))
    sketch.body(_PERSON_SCALE * torso, anchor, coat)
    sketch.body(_PERSON_SCALE * disc(1.25 * lean, 1.62, 0.175, 10), anchor, _SKIN)


def draw_cyclist(sketch: Sketch, anchor: Anchor, direction: str, phase: float) -> None:
    """Paint a cyclist side-on, riding "to the left" or "to the right"; `phase` shifts the pedals."""
    way = 1.0 if direction == "to the right" else -1.0

    def bar(start: ArrayLike, end: ArrayLike, width: float, colour: RGB) -> None:
        mirror = np.array([way, 1.0])
        part = limb(np.asarray(start) * mirror, np.asarray(end) * mirror, width)
        sketch.body(_CYCLIST_SCALE * part, anchor, colour)

    for hub in (-0.58, 0.58):
        # Two outlines painted as one thing leave the inside free.
        ring = np.concatenate([disc(way * hub, 0.36, 0.38, 14), disc(way * hub, 0.36, 0.27, 14)])
        sketch.body(_CYCLIST_SCALE * ring, anchor, _BICYCLE_TYRE)
    crank = 2 * np.pi * 1.4 * sketch.camera.times + phase
    for turn in (0.0, np.pi):
        pedal = _points(0.15 * np.sin(crank + turn), 0.3 + 0.15 * np.cos(crank + turn))
        knee = _points(0.16 + 0.08 * np.sin(crank + turn), 0.72 + 0.1 * np.cos(crank + turn))
        bar((-0.24, 0.98), knee, 0.17, _TROUSERS)
        bar(knee, pedal, 0.14, _TROUSERS)
    bar((-0.58, 0.36), (-0.2, 0.85), 0.08, _BICYCLE)
    bar((-0.2, 0.85), (0.45, 0.85), 0.08, _BICYCLE)
    bar((0.58, 0.36), (0.42, 1.0), 0.08, _BICYCLE)
    bar((-0.26, 0.9), (0.2, 1.5), 0.36, _VEST)
    bar((0.18, 1.42), (0.44, 1.02), 0.12, _VEST)
    sketch.body(_CYCLIST_SCALE * disc(way * 0.34, 1.68, 0.17, 10), anchor, _SKIN)
    helmet = outline((way * 0.16, 1.7), (way * 0.5, 1.72), (way * 0.44, 1.88), (way * 0.22, 1.88))
    sketch.body(_CYCLIST_SCALE * helmet, anchor, _HELMET)


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
