"""Puts a scene's things where they belong, in painting order."""

import numpy as np
from numpy.typing import NDArray

from crossdraft.scenes.camera import FOCAL, SPEED_M_PER_S, Camera, camera_at
from crossdraft.scenes.palette import PAINT, air_of
from crossdraft.scenes.people import draw_cyclist, draw_person
from crossdraft.scenes.scene import DURATION_S, Scene
from crossdraft.scenes.scenery import draw_ground, draw_sides
from crossdraft.scenes.shapes import Paint, Place, Sketch
from crossdraft.scenes.signals import draw_light, draw_sign
from crossdraft.scenes.vehicles import draw_vehicle
from crossdraft.scenes.weather import draw_heavens, falling

_WALK_M_PER_S = 2.0
_RIDE_M_PER_S = 2.6
_PERSON_GAP_M = 0.8


def paints_of(scene: Scene, times_s: NDArray[np.float64]) -> list[Paint]:
    """Everything to paint for the scene at the given times (s), back to front."""
    times = np.clip(np.asarray(times_s, dtype=np.float64), 0.0, DURATION_S)
    camera = camera_at(scene, times)
    sketch = Sketch(camera, air_of(scene))
    draw_heavens(sketch, scene)
    draw_sides(sketch, scene)
    draw_ground(sketch, scene)
    _draw_signals(sketch, scene)
    lead = _lead_place(scene, times)
    if scene.lead != "none":
        draw_vehicle(sketch, scene.lead, PAINT[scene.lead_colour], lead)
    for side, thing in ((-1.0, scene.left), (1.0, scene.right)):
        if thing == "vehicle":
            _draw_side_vehicle(sketch, scene, side, times)
        elif thing == "people":
            _draw_people(sketch, scene, side, times)
        elif thing == "cyclist":
            way = 1.0 if scene.cyclist == "to the right" else -1.0
            place = _roadside(scene, camera, side, times, way * _RIDE_M_PER_S)
            draw_cyclist(sketch, place, times, scene.cyclist, _detail(scene, 7))
    return sketch.paints() + falling(scene, times)


def _detail(scene: Scene, stream: int) -> float:
    return float(np.random.default_rng([scene.seed, stream]).uniform(0, 2 * np.pi))


def _roadside(
    scene: Scene,
    camera: Camera,
    side: float,
    times: NDArray[np.float64],
    speed: float = 0.0,
    aside: float = 0.0,
    back: float = 0.0,
) -> Place:
    """Place of something beside the lane that walks across at `speed`; the road carries it along."""
    middle = 8.3 + 0.3 * SPEED_M_PER_S[scene.ego] + back
    # The faster we go, the more things spread out as they come near; start them further in.
    spread = 0.295 - 0.010 * SPEED_M_PER_S[scene.ego]
    ahead = middle - camera.driven
    across = side * spread * middle / FOCAL + aside
    return _place(across + speed * (times - 0.5) - ahead * camera.yaw, ahead, across, middle)


def _place(
    across: NDArray[np.floating], ahead: NDArray[np.floating], across_m: float, ahead_m: float
) -> Place:
    return Place(np.stack([across, np.zeros_like(across), ahead], -1).astype(np.float32), across_m, ahead_m)


def _draw_signals(sketch: Sketch, scene: Scene) -> None:
    light_side = 1.0 if scene.light_side == "right" else -1.0
    still = np.zeros(sketch.camera.count)
    if scene.light != "none":
        draw_light(
            sketch,
            scene.light,
            _roadside(scene, sketch.camera, light_side, still, aside=light_side * 0.35, back=2.2),
        )
    if scene.sign != "none":
        draw_sign(
            sketch,
            scene.sign,
            _roadside(scene, sketch.camera, -light_side, still, aside=-light_side * 0.35, back=2.2),
        )


def _lead_place(scene: Scene, times: NDArray[np.float64]) -> Place:
    """The vehicle ahead, relative to us. It follows our turns, so it stays in view."""
    t = times / DURATION_S
    big = scene.lead in ("truck", "bus")
    near, far = (9.0, 15.0) if big else (7.0, 12.0)
    middle = 10.5 if big else 8.6
    smooth = t * t * (3 - 2 * t)
    ahead, across = np.full_like(t, middle), np.zeros_like(t)
    if scene.lead_motion == "closer":
        ahead = far + (near - far) * t
    elif scene.lead_motion == "away":
        ahead = near + (far - near) * t
    elif scene.lead_motion in ("left lane", "right lane"):
        across = (1.0 if scene.lead_motion == "right lane" else -1.0) * 2.3 * smooth
    return _place(across, ahead, 0.0, middle)


def _draw_side_vehicle(sketch: Sketch, scene: Scene, side: float, times: NDArray[np.float64]) -> None:
    """An oncoming car on the left, a parked car on the right."""
    colour = PAINT[("red", "orange", "green", "blue", "purple")[scene.seed % 5]]
    if side > 0:
        draw_vehicle(sketch, "car", colour, _roadside(scene, sketch.camera, side, times, aside=0.35))
        return
    ahead = 13.5 - 5.5 * times / DURATION_S
    place = _place(-3.45 - ahead * sketch.camera.yaw, ahead, -3.45, 10.75)
    draw_vehicle(sketch, "car", colour, place, oncoming=True)


def _draw_people(sketch: Sketch, scene: Scene, side: float, times: NDArray[np.float64]) -> None:
    speed = {"to the right": _WALK_M_PER_S, "to the left": -_WALK_M_PER_S}.get(scene.people_action, 0.0)
    for number in range(scene.people):
        aside = (number - 0.5 * (scene.people - 1)) * _PERSON_GAP_M
        place = _roadside(scene, sketch.camera, side, times, speed, aside, back=0.15 * number)
        draw_person(
            sketch, PAINT[scene.people_colour], place, times, scene.people_action, _detail(scene, 8 + number)
        )
