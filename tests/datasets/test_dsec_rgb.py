"""A made-up rig: both cameras look at a pattern infinitely far away, so that the exact answer is known."""

import cv2
import h5py
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.dsec_rgb import RgbAligner, event_to_image_homography, read_rectify_map

EVENT_SIZE, IMAGE_SIZE = (64, 48), (144, 108)
EVENT_CAMERA, IMAGE_CAMERA = (56.0, 55.0, 31.0, 24.5), (120.0, 122.0, 70.0, 55.0)
DISTORTION = np.array([-0.25, 0.06, 0.001, -0.002, 0.0])


def rotation(*angles: float) -> NDArray[np.float64]:
    return np.asarray(cv2.Rodrigues(np.array(angles))[0], dtype=np.float64)


R_RECT0, R_RECT1, R_10 = (rotation(0.02, -0.03, 0.01), rotation(-0.01, 0.02, 0.03), rotation(0.01, 0.015, -0.02))


def matrix(camera: tuple[float, float, float, float]) -> NDArray[np.float64]:
    return np.array([[camera[0], 0, camera[2]], [0, camera[1], camera[3]], [0, 0, 1]])


def pattern(direction: NDArray[np.float64]) -> NDArray[np.uint8]:
    """What is seen in each direction of the event camera's own frame: slow waves, another for each colour."""
    a, b = direction[..., 0] / direction[..., 2], direction[..., 1] / direction[..., 2]
    waves = [np.sin(6 * a), np.cos(7 * b), np.sin(5 * a + 4 * b)]
    return np.rint(128 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)


def pixels(size: tuple[int, int]) -> NDArray[np.float64]:
    columns, rows = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    return np.stack([columns, rows], axis=-1).astype(np.float64)


@pytest.fixture
def rig(tmp_path):
    """Calibration files as DSEC lays them out, the rectified image, and the pattern on the raw event grid."""
    camera = list(EVENT_CAMERA)
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = R_10, (-0.05, 0.0, 0.0)
    calibration = {
        "intrinsics": {"camRect0": {"camera_matrix": camera}, "camRect1": {"camera_matrix": list(IMAGE_CAMERA)}},
        "extrinsics": {"T_10": transform.tolist(), "R_rect0": R_RECT0.tolist(), "R_rect1": R_RECT1.tolist()},
    }
    (tmp_path / "cam_to_cam.yaml").write_text(yaml.safe_dump(calibration))
    raw = pixels(EVENT_SIZE).reshape(-1, 1, 2)
    k0 = matrix(EVENT_CAMERA)
    rectified = cv2.undistortPoints(raw, k0, DISTORTION, R=R_RECT0, P=k0)
    with h5py.File(tmp_path / "rectify_map.h5", "w") as file:
        file["rectify_map"] = rectified.reshape(EVENT_SIZE[1], EVENT_SIZE[0], 2).astype(np.float32)
    undistorted = np.asarray(cv2.undistortPoints(raw, k0, DISTORTION), dtype=np.float64).reshape(-1, 2)
    seen_by_events = np.concatenate([undistorted, np.ones((len(undistorted), 1))], axis=1)
    homogeneous = np.concatenate([pixels(IMAGE_SIZE), np.ones((IMAGE_SIZE[1], IMAGE_SIZE[0], 1))], axis=-1)
    in_image_camera = homogeneous @ np.linalg.inv(matrix(IMAGE_CAMERA)).T @ R_RECT1  # rows: R_rect1 transposed
    image = pattern(in_image_camera @ R_10)
    return tmp_path, image, pattern(seen_by_events).reshape(EVENT_SIZE[1], EVENT_SIZE[0], 3)


def test_the_image_lands_on_the_raw_event_grid(rig):
    folder, image, truth = rig
    aligned = RgbAligner.load(folder / "cam_to_cam.yaml", folder / "rectify_map.h5")(image)
    inside = (aligned != 0).all(axis=-1)
    assert inside.mean() > 0.8
    assert np.abs(aligned[inside].astype(int) - truth[inside]).max() <= 3  # rounding and bilinear sampling


def test_leaving_out_the_rectify_map_would_be_noticed(rig):
    folder, image, truth = rig
    with h5py.File(folder / "rectify_map.h5", "w") as file:
        file["rectify_map"] = pixels(EVENT_SIZE).astype(np.float32)
    aligned = RgbAligner.load(folder / "cam_to_cam.yaml", folder / "rectify_map.h5")(image)
    inside = (aligned != 0).all(axis=-1)
    assert np.abs(aligned[inside].astype(int) - truth[inside]).max() > 20


def test_outside_the_image_is_filled(rig):
    folder, image, _ = rig
    aligner = RgbAligner.load(folder / "cam_to_cam.yaml", folder / "rectify_map.h5")
    small = aligner(image[:20, :20], fill=7)
    assert (small[-1, -1] == 7).all()
    with pytest.raises(CrossdraftError, match="uint8"):
        aligner(image.astype(np.float32))  # pyright: ignore[reportArgumentType]


def test_identity_calibration_is_the_identity(rig):
    folder, _, _ = rig
    calibration = yaml.safe_load((folder / "cam_to_cam.yaml").read_text())
    calibration["intrinsics"]["camRect1"] = calibration["intrinsics"]["camRect0"]
    for name, size in (("R_rect0", 3), ("R_rect1", 3), ("T_10", 4)):
        calibration["extrinsics"][name] = np.eye(size).tolist()
    (folder / "same.yaml").write_text(yaml.safe_dump(calibration))
    assert event_to_image_homography(folder / "same.yaml") == pytest.approx(np.eye(3), abs=1e-12)


def test_bad_calibrations_are_refused(rig):
    folder = rig[0]
    cases = {"absent.yaml": None, "a.yaml": "intrinsics: {}", "b.yaml": ": [", "c.yaml": "- 1", "d.yaml": "\x00"}
    for name, content in cases.items():
        if content is not None:
            (folder / name).write_text(content)
        with pytest.raises(CrossdraftError, match=r"no calibration|no DSEC calibration"):
            event_to_image_homography(folder / name)
    with pytest.raises(CrossdraftError, match="no rectify map"):
        read_rectify_map(folder / "absent.h5")
    with h5py.File(folder / "flat.h5", "w") as file:
        file["rectify_map"] = np.zeros((3, 4))
    with pytest.raises(CrossdraftError, match=r"\[H, W, 2\]"):
        read_rectify_map(folder / "flat.h5")
