"""People and cyclists: a head, a coat, and legs that move."""

import numpy as np

from crossdraft.scenes.palette import RGB
from crossdraft.scenes.shapes import Place, Sketch, disc, limb, outline

_SKIN: RGB = (232, 188, 156)
_TROUSERS: RGB = (36, 38, 52)
_SHOES: RGB = (16, 16, 16)
_TYRE: RGB = (20, 20, 22)
_VEST: RGB = (214, 232, 60)
_HELMET: RGB = (250, 250, 250)
_BICYCLE: RGB = (205, 205, 210)

# Larger than life, so that a leg is more than a pixel wide at the reference resolution.
_SCALE = np.float32(1.22)


def _points(across: np.ndarray | float, height: np.ndarray | float) -> np.ndarray:
    return np.stack(np.broadcast_arrays(across, height), -1)


def draw_person(
    sketch: Sketch, coat: RGB, place: Place, times_s: np.ndarray, action: str, phase: float
) -> None:
    """Paint a person whose feet are at `place`."""
    walking = action in ("to the left", "to the right")
    lean = {"to the left": -0.12, "to the right": 0.12}.get(action, 0.0)
    swing = 0.42 * np.sin(2 * np.pi * 2.0 * times_s + phase) if walking else np.zeros_like(times_s)
    stance = 0.0 if walking else 0.13
    for sign, offset in ((1, -stance), (-1, stance)):
        foot = _points(sign * swing + offset, 0.06)
        sketch.body(_SCALE * limb(_points(offset * 0.6, 0.88), foot, 0.19), place, _TROUSERS)
    shoulder = 1.38
    _arms(sketch, coat, place, times_s, action, shoulder, swing, phase)
    torso = outline(
        (-0.22, 0.8), (0.22, 0.8), (0.25 + lean, shoulder + 0.06), (-0.25 + lean, shoulder + 0.06)
    )
    sketch.body(_SCALE * torso, place, coat)
    sketch.body(_SCALE * disc(1.25 * lean, 1.62, 0.175, 10), place, _SKIN)


def _arms(
    sketch: Sketch,
    coat: RGB,
    place: Place,
    times_s: np.ndarray,
    action: str,
    shoulder: float,
    swing: np.ndarray,
    phase: float,
) -> None:
    for side in (-1.0, 1.0):
        if action == "waving":
            wave = 0.28 * np.sin(2 * np.pi * 2.5 * times_s + phase)
            hand = _points(side * 0.5 + wave, 2.02)
            sketch.body(_SCALE * limb((side * 0.2, shoulder), hand, 0.15), place, coat)
            continue
        if action == "standing":
            hand = _points(np.full_like(times_s, side * 0.33), 0.78)
        else:
            hand = _points(-side * swing * 0.8, 0.86)
        sketch.body(_SCALE * limb((side * 0.2, shoulder), hand, 0.13), place, coat)


def draw_cyclist(sketch: Sketch, place: Place, times_s: np.ndarray, direction: str, phase: float) -> None:
    """Paint a cyclist side-on, riding to the left or to the right; `place` is below the pedals."""
    way = 1.0 if direction == "to the right" else -1.0
    scale = np.float32(1.12)

    def bar(
        start: np.ndarray | tuple[float, float],
        end: np.ndarray | tuple[float, float],
        width: float,
        colour: RGB,
    ) -> None:
        mirror = np.array([way, 1.0])
        sketch.body(scale * limb(np.asarray(start) * mirror, np.asarray(end) * mirror, width), place, colour)

    for hub in (-0.58, 0.58):
        ring = np.concatenate([disc(way * hub, 0.36, 0.38, 14), disc(way * hub, 0.36, 0.27, 14)])
        sketch.body(scale * ring, place, _TYRE)
    crank = 2 * np.pi * 1.4 * times_s + phase
    hip = (-0.24, 0.98)
    for turn in (0.0, np.pi):
        pedal = _points(0.15 * np.sin(crank + turn), 0.3 + 0.15 * np.cos(crank + turn))
        knee = _points(0.16 + 0.08 * np.sin(crank + turn), 0.72 + 0.1 * np.cos(crank + turn))
        bar(np.broadcast_to(hip, knee.shape), knee, 0.17, _TROUSERS)
        bar(knee, pedal, 0.14, _TROUSERS)
    for start, end in (
        ((-0.58, 0.36), (-0.2, 0.85)),
        ((-0.2, 0.85), (0.45, 0.85)),
        ((0.58, 0.36), (0.42, 1.0)),
    ):
        bar(start, end, 0.08, _BICYCLE)
    bar((-0.26, 0.9), (0.2, 1.5), 0.36, _VEST)
    bar((0.18, 1.42), (0.44, 1.02), 0.12, _VEST)
    sketch.body(scale * disc(way * 0.34, 1.68, 0.17, 10), place, _SKIN)
    head = outline((way * 0.16, 1.7), (way * 0.5, 1.72), (way * 0.44, 1.88), (way * 0.22, 1.88))
    sketch.body(scale * head, place, _HELMET)
