"""The front camera: where it is, how it shakes, and where a point in front of it lands in the picture.

Camera axes: x to the right, y up from the ground, z ahead, in metres. Picture axes: u to the right, v down,
in parts of the picture's size, so that nothing here knows a resolution.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossdraft_lab.scenes.scene import Scene

Floats = NDArray[np.float32]

FOCAL = 0.95
HORIZON = 0.42
CAMERA_HEIGHT_M = 1.5
NEAR_M = 0.6

SPEED_M_PER_S = {"stopped": 0.0, "slow": 1.8, "fast": 5.6, "turning left": 2.4, "turning right": 2.4}
_YAW_RAD_PER_S = {"turning left": -0.15, "turning right": 0.15}
_BEND = {"left bend": -0.020, "right bend": 0.020}
_BEND_STARTS_M, _BEND_LENGTH_M = 6.0, 40.0


@dataclass(frozen=True, slots=True)
class Camera:
    """The camera at T times.

    Attributes:
        times: [T], s.
        driven: [T], m; zero at mid-clip.
        yaw: [T], rad to the right; zero at mid-clip.
        shake: [T, 2], in picture axes.
        bend: how fast the road leaves its straight line, 1/m, right positive.
    """

    times: NDArray[np.float64]
    driven: Floats
    yaw: Floats
    shake: Floats
    bend: float

    @property
    def count(self) -> int:
        """Number of times, T."""
        return len(self.driven)


def camera_at(scene: Scene, times_s: NDArray[np.float64]) -> Camera:
    """The ego vehicle's camera at the given times.

    A running engine shakes the camera by about half a pixel: this is what lets an event camera see standing
    things while the car stands.
    """
    t = times_s
    phase = np.random.default_rng([scene.seed, 2]).uniform(0, 2 * np.pi, 3)
    rough = 0.0030 if scene.ego == "stopped" else 0.0036
    across = rough * 0.8 * np.sin(2 * np.pi * 5.0 * t + phase[0])
    up = rough * (np.sin(2 * np.pi * 3.5 * t + phase[1]) + 0.4 * np.sin(2 * np.pi * 8.0 * t + phase[2]))
    return Camera(
        times=t,
        driven=(SPEED_M_PER_S[scene.ego] * (t - 0.5)).astype(np.float32),
        yaw=(_YAW_RAD_PER_S.get(scene.ego, 0.0) * (t - 0.5)).astype(np.float32),
        shake=np.stack([across, up], axis=-1).astype(np.float32),
        bend=_BEND.get(scene.layout, 0.0),
    )


def on_road(camera: Camera, points: Floats) -> Floats:
    """Points fixed to the road, [N, 3] (across, height, ahead at mid-clip), in camera axes [T, N, 3].

    The road carries them: towards the camera as it drives, and sideways where the road bends.
    """
    moved = np.repeat(points[None], camera.count, axis=0)
    moved[..., 2] -= camera.driven[:, None]
    if camera.bend:
        moved[..., 0] += camera.bend * np.clip(moved[..., 2] - _BEND_STARTS_M, 0.0, _BEND_LENGTH_M) ** 2
    return moved


def turned(camera: Camera, points: Floats) -> Floats:
    """Points [T, N, 3] as seen after the camera has turned by its yaw (small angles)."""
    if not camera.yaw.any():
        return points
    out = points.copy()
    out[..., 0] -= np.maximum(points[..., 2], NEAR_M) * camera.yaw[:, None]
    return out


def project(camera: Camera, points: Floats) -> Floats:
    """Camera axes [T, N, 3] to picture axes [T, N, 2].

    Points behind the near plane slide onto it along z, which is exact for edges that run along the road,
    the only ones that ever reach the camera.
    """
    scale = FOCAL / np.maximum(points[..., 2], NEAR_M)
    u = 0.5 + points[..., 0] * scale
    v = HORIZON - (points[..., 1] - CAMERA_HEIGHT_M) * scale
    return (np.stack([u, v], axis=-1) + camera.shake[:, None, :]).astype(np.float32, copy=False)
