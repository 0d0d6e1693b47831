"""People and cyclists: a head, a coat, and legs that move."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossdraft_lab.scenes.palette import RGB
from crossdraft_lab.scenes.sketch import Anchor, Sketch, disc, limb, outline

_SKIN: RGB = (232, 188, 156)
_TROUSERS: RGB = (36, 38, 52)
_TYRE: RGB = (20, 20, 22)
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
        sketch.body(_CYCLIST_SCALE * ring, anchor, _TYRE)
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
