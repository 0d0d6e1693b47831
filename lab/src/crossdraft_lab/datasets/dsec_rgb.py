"""DSEC's colour images mapped onto the raw pixel grid of its event camera.

The two cameras of DSEC stand beside each other, and their images are rectified separately. For a point at
infinity the mapping from one to the other is a pure rotation (maintainers' recipe, DSEC issue 25):

    P = K_rect1 · R_rect1 · R(T_10) · R_rect0ᵀ · K_rect0⁻¹      rectified event pixel -> rectified image pixel

`rectify_map[y, x]` gives the rectified position of the *raw* event pixel (x, y), so P of it is the position in the
image, and events keep their integer coordinates. Near objects appear shifted (the cameras are a few centimetres
apart, and exact alignment needs the depth).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.hdf5 import dataset, opened
from crossdraft.events.limits import DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, eq=False)
class RgbAligner:
    """Image position to sample for each raw event pixel: float32 [H, W, 2] of (column, row)."""

    source: NDArray[np.float32]

    @classmethod
    def load(cls, cam_to_cam: str | Path, rectify_map: str | Path) -> Self:
        """Load from a sequence's `calibration/cam_to_cam.yaml` and `events/left/rectify_map.h5`.

        Raises:
            CrossdraftError: a missing or damaged file, or one that lacks a part.
        """
        to_image = event_to_image_homography(cam_to_cam)
        position = read_rectify_map(rectify_map).astype(np.float64)
        homogeneous = np.concatenate([position, np.ones((*position.shape[:2], 1))], axis=-1) @ to_image.T
        # A position behind the image camera has no source: send it far outside the image.
        depth = np.where(homogeneous[..., 2:] > 0, homogeneous[..., 2:], np.nan)
        return cls(np.nan_to_num(homogeneous[..., :2] / depth, nan=-1e6).astype(np.float32))

    def __call__(self, rgb: NDArray[np.uint8], fill: int = 0) -> NDArray[np.uint8]:
        """Sample a rectified image [h, w, 3] bilinearly onto the event grid [H, W, 3]; `fill` outside the image."""
        import cv2

        if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
            raise CrossdraftError(f"An image must be uint8 [h, w, 3], not {rgb.dtype} {list(rgb.shape)}.")
        column, row = self.source[..., 0], self.source[..., 1]
        aligned = cv2.remap(rgb, column, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        inside = (column >= 0) & (column <= rgb.shape[1] - 1) & (row >= 0) & (row <= rgb.shape[0] - 1)
        return np.where(inside[..., None], aligned, fill).astype(np.uint8)


def read_rectify_map(path: str | Path) -> NDArray[np.float32]:
    """Read DSEC's `rectify_map.h5`: float32 [H, W, 2], the rectified (x, y) of each raw event pixel.

    Raises:
        CrossdraftError: missing, damaged, or of another shape.
    """
    if not Path(path).is_file():
        raise CrossdraftError(f"There is no rectify map at {path}; DSEC ships it beside events.h5.")
    with opened(Path(path)) as file:
        table = dataset(file, "rectify_map")
        if table.ndim != 3 or table.shape[2] != 2:
            raise CrossdraftError(f"{path}: a rectify map is [H, W, 2], not {list(table.shape or ())}.")
        DEFAULT_LIMITS.check_sensor(path, table.shape[1], table.shape[0])
        return table[()].astype(np.float32)


def event_to_image_homography(cam_to_cam: str | Path) -> NDArray[np.float64]:
    """Read P of this module's formula, 3x3, from DSEC's `cam_to_cam.yaml`.

    Raises:
        CrossdraftError: missing file, or one without these cameras.
    """
    import yaml

    path = Path(cam_to_cam)
    if not path.is_file():
        raise CrossdraftError(f"There is no calibration at {path}; DSEC ships it as calibration/cam_to_cam.yaml.")
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        intrinsics, extrinsics = content["intrinsics"], content["extrinsics"]
        k0, k1 = (_camera_matrix(intrinsics[name]["camera_matrix"]) for name in ("camRect0", "camRect1"))
        r0, r1 = (np.reshape(extrinsics[name], (3, 3)) for name in ("R_rect0", "R_rect1"))
        r10 = np.reshape(extrinsics["T_10"], (4, 4))[:3, :3]
        return np.asarray(k1 @ r1 @ r10 @ r0.T @ np.linalg.inv(k0), dtype=np.float64)
    except (yaml.YAMLError, RecursionError, LookupError, TypeError, ValueError, np.linalg.LinAlgError) as error:
        what = " ".join(str(error).split())
        raise CrossdraftError(f"{path} is no DSEC calibration of camRect0 and camRect1 ({what}).") from error


def _camera_matrix(focal_and_centre: ArrayLike) -> NDArray[np.float64]:
    fx, fy, cx, cy = np.asarray(focal_and_centre, dtype=np.float64)
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
