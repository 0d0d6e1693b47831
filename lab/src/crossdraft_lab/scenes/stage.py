"""Lays out a scene: all of its polygons, in painting order."""

import numpy as np
from numpy.typing import NDArray

from crossdraft_lab.scenes.camera import FOCAL, SPEED_M_PER_S, Camera, camera_at
from crossdraft_lab.scenes.palette import PAINT, air_of
from crossdraft_lab.scenes.scene import COLOURS, DURATION_S, Scene
from crossdraft_lab.scenes.scenery import draw_falling, draw_ground, draw_heavens, draw_sides
from crossdraft_lab.scenes.sketch import Anchor, Painting, Sketch
from crossdraft_lab.scenes.things import draw_cyclist, draw_light, draw_person, draw_sign, draw_vehicle

_SIGN = {"left": -1.0, "right": 1.0}
_WAY = {"to the left": -1.0, "to the right": 1.0}
_WALK_M_PER_S = 2.0
_RIDE_M_PER_S = 2.6
_PERSON_GAP_M = 0.8
_ONCOMING_ACROSS_M = -3.45


def stage(scene: Scene, times_s: NDArray[np.float64]) -> Painting:
    """Everything to paint for the scene at the given times (s, in 0..DURATION_S), back to front."""
    sketch = Sketch(camera_at(scene, times_s), air_of(scene))
    draw_heavens(sketch, scene)
    draw_sides(sketch, scene)
    draw_ground(sketch, scene)
    _draw_signals(sketch, scene)
    if scene.lead != "none":
        draw_vehicle(sketch, scene.lead, PAINT[scene.lead_colour], _lead_anchor(scene, sketch.camera.times))
    for side in ("left", "right"):
        thing = scene.thing_at(side)
        if thing == "vehicle":
            _draw_side_vehicle(sketch, scene, side)
        elif thing == "people":
            _draw_people(sketch, scene, side)
        elif thing == "cyclist":
            anchor = _roadside(scene, sketch.camera, side, speed=_WAY[scene.cyclist] * _RIDE_M_PER_S)
            draw_cyclist(sketch, anchor, scene.cyclist, _phase(scene, 7))
    draw_falling(sketch, scene)
    return sketch.painting()


def _phase(scene: Scene, stream: int) -> float:
    return float(np.random.default_rng([scene.seed, stream]).uniform(0, 2 * np.pi))


def _anchor(across: NDArray[np.floating], depth: NDArray[np.floating], across_m: float, depth_m: float) -> Anchor:
    return Anchor(np.stack([across, np.zeros_like(across), depth], -1).astype(np.float32), across_m, depth_m)


def _roadside(
    scene: Scene, camera: Camera, side: str, speed: float = 0.0, right_m: float = 0.0, back: float = 0.0
) -> Anchor:
    """Anchor of something at the side of our lane that moves with the road.

    Args:
        scene: for the ego speed.
        camera: for the way driven and the yaw.
        side: "left" or "right".
        speed: at which it walks to the right, m/s.
        right_m: further to the right, m.
        back: further away, m.
    """
    ego_speed = SPEED_M_PER_S[scene.ego]
    middle = 8.3 + 0.3 * ego_speed + back
    # The faster we go, the more things spread out as they come near; start them further in.
    spread = 0.295 - 0.010 * ego_speed
    depth = middle - camera.driven
    across = _SIGN[side] * spread * middle / FOCAL + right_m
    return _anchor(across + speed * (camera.times - 0.5) - depth * camera.yaw, depth, across, middle)


def _draw_signals(sketch: Sketch, scene: Scene) -> None:
    """Place the light on its side and the sign on the other, behind and outside of the things there."""

    def anchor(side: str) -> Anchor:
        return _roadside(scene, sketch.camera, side, right_m=_SIGN[side] * 0.35, back=2.2)

    if scene.light != "none":
        draw_light(sketch, scene.light, anchor(scene.light_side))
    if scene.sign != "none":
        draw_sign(sketch, scene.sign, anchor("left" if scene.light_side == "right" else "right"))


def _lead_anchor(scene: Scene, times: NDArray[np.float64]) -> Anchor:
    """The vehicle ahead, relative to us. It follows our turns, so it stays in view."""
    t = times / DURATION_S
    near, middle, far = (9.0, 10.5, 15.0) if scene.lead in {"truck", "bus"} else (7.0, 8.6, 12.0)
    depth, across = np.full_like(t, middle), np.zeros_like(t)
    if scene.lead_motion == "closer":
        depth = far + (near - far) * t
    elif scene.lead_motion == "away":
        depth = near + (far - near) * t
    elif scene.lead_motion in {"left lane", "right lane"}:
        across = _SIGN[scene.lead_motion.removesuffix(" lane")] * 2.3 * t * t * (3 - 2 * t)
    return _anchor(across, depth, 0.0, middle)


def _draw_side_vehicle(sketch: Sketch, scene: Scene, side: str) -> None:
    """An oncoming car on the left, a parked car on the right."""
    colour, camera = PAINT[COLOURS[scene.seed % len(COLOURS)]], sketch.camera
    if side == "right":
        draw_vehicle(sketch, "car", colour, _roadside(scene, camera, side, right_m=0.35))
        return
    depth = 13.5 - 5.5 * camera.times / DURATION_S
    anchor = _anchor(_ONCOMING_ACROSS_M - depth * camera.yaw, depth, _ONCOMING_ACROSS_M, 10.75)
    draw_vehicle(sketch, "car", colour, anchor, oncoming=True)


def _draw_people(sketch: Sketch, scene: Scene, side: str) -> None:
    speed = _WAY.get(scene.people_action, 0.0) * _WALK_M_PER_S
    for number in range(scene.people):
        right_m = (number - 0.5 * (scene.people - 1)) * _PERSON_GAP_M
        anchor = _roadside(scene, sketch.camera, side, speed, right_m, back=0.15 * number)
        draw_person(sketch, PAINT[scene.people_colour], anchor, scene.people_action, _phase(scene, 8 + number))
