"""Miniature data sets in their true layouts."""

import json
from pathlib import Path

import cv2
import h5py
import numpy as np
import yaml

from crossdraft.events import write_dsec_h5
from crossdraft.video import write_mp4
from tests.events.helpers import made_up

START_US = 57_922_800_000  # DSEC's clock does not begin at 0
QA = [("v1", "what is moving?", "car"), ("v1", "Is it dark?", "no"), ("v2", "what is moving?", "dog")]


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def film(path: Path, frames: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(path, [np.full((16, 16, 3), 40 * i, np.uint8) for i in range(frames)], 10)
    return path


def activitynet(root: Path) -> Path:
    """Questions and answers in another order, a video of another suffix, a missing one."""
    questions = [{"video_name": v, "question": q, "question_id": f"{v}_{i}"} for i, (v, q, _) in enumerate(QA)]
    answers = [{"answer": a, "type": i, "question_id": f"{v}_{i}"} for i, (v, _, a) in enumerate(QA)]
    write_json(root / "dataset" / "test_q.json", questions)
    write_json(root / "dataset" / "test_a.json", answers[::-1])
    film(root / "videos" / "v_v1.mp4")
    return root


def msvd(root: Path) -> Path:
    """Two overlapping clips of one YouTube video, one of another."""
    stems = {"vid1": "abc_-1_5_15", "vid2": "abc_-1_10_20", "vid3": "xyz_0_9"}
    rows = [
        {"answer": "car", "id": i, "question": "what is moving?", "video_id": i} for i in (1, 2, 3)
    ]  # of one split each
    for name, row in zip(("train", "val", "test"), rows, strict=True):
        write_json(root / f"{name}_qa.json", [row])
    (root / "youtube_mapping.txt").write_text("".join(f"{stem} {number}\n" for number, stem in stems.items()))
    for stem in stems.values():
        film(root / "YouTubeClips" / f"{stem}.mp4")
    return root


def msrvtt(root: Path) -> Path:
    rows = [{"answer": "car", "category_id": 3, "id": i, "question": "who drives?", "video_id": i} for i in (7, 8)]
    write_json(root / "test_qa.json", rows)
    info = [
        {"video_id": "video7", "url": "https://y/one", "start time": 1.5, "end time": 3.5, "split": "test"},
        {"video_id": "video8", "url": "https://y/one", "start time": 3.0, "end time": 6.0, "split": "test"},
    ]
    write_json(root / "test_videodatainfo.json", {"videos": info})
    for number in (7, 8):
        film(root / "TestVideo" / f"video{number}.mp4")
    return root


def dsec(root: Path, names: tuple[str, ...] = ("zurich_city_09_a", "zurich_city_09_b"), seconds: float = 0.4) -> Path:
    """Sequences of 20 images a second on a 64x48 event camera, both cameras looking the same way."""
    for name in names:
        folder = root / "train" / name
        times = START_US + 50_000 * np.arange(round(20 * seconds))
        images = folder / "images" / "left" / "rectified"
        images.mkdir(parents=True)
        for index in range(len(times)):
            cv2.imwrite(str(images / f"{index:06d}.png"), np.full((54, 72, 3), 10 * index, np.uint8))
        (folder / "images" / "timestamps.txt").write_text("".join(f"{time}\n" for time in times))
        left = folder / "events" / "left"
        left.mkdir(parents=True)
        span = round(seconds * 1e6)
        write_dsec_h5(left / "events.h5", made_up(4000, 64, 48, START_US, span))
        grid = np.stack(np.meshgrid(np.arange(64), np.arange(48)), axis=-1).astype(np.float32)
        with h5py.File(left / "rectify_map.h5", "w") as file:
            file["rectify_map"] = grid
        camera = {"camera_matrix": [60.0, 60.0, 31.5, 23.5]}
        calibration = {
            "intrinsics": {"camRect0": camera, "camRect1": {"camera_matrix": [60.0, 60.0, 35.5, 26.5]}},
            "extrinsics": {
                name: np.eye(4 if name == "T_10" else 3).tolist() for name in ("T_10", "R_rect0", "R_rect1")
            },
        }
        (folder / "calibration").mkdir()
        (folder / "calibration" / "cam_to_cam.yaml").write_text(yaml.safe_dump(calibration))
    return root


def mvsec(root: Path) -> Path:
    """Grey frames, times in epoch seconds, polarity -1 and +1."""
    root.mkdir(parents=True, exist_ok=True)
    start = 1_504_645_177.0
    t = start + np.linspace(0, 0.5, 400, endpoint=False)
    with h5py.File(root / "indoor_flying1_data.hdf5", "w") as file:
        rng = np.random.default_rng(0)
        x, y, p = rng.integers(0, 346, 400), rng.integers(0, 260, 400), rng.choice([-1.0, 1.0], 400)
        file["davis/left/events"] = np.stack([x, y, t, p], axis=1)
        file["davis/left/image_raw"] = np.full((16, 260, 346), 9, np.uint8)
        file["davis/left/image_raw_ts"] = start + np.arange(16) / 31.0
        file["davis/left/image_raw_event_inds"] = np.arange(16) * 25
    return root


def m3ed(root: Path) -> Path:
    """Colour frames (BGR), times in µs."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with h5py.File(root / "car_urban_day_horse_data.h5", "w") as file:
        columns = {"x": rng.integers(0, 1280, 900), "y": rng.integers(0, 720, 900), "p": rng.integers(0, 2, 900)}
        for name, values in columns.items():
            file[f"prophesee/left/{name}"] = values.astype(np.uint16)
        file["prophesee/left/t"] = np.sort(rng.integers(0, 400_000, 900)).astype(np.int64)
        file["prophesee/left/ms_map_idx"] = np.searchsorted(file["prophesee/left/t"][()], np.arange(400) * 1000)
        frames = np.zeros((10, 40, 64, 3), np.uint8)
        frames[..., 0] = 200  # blue
        file["ovc/rgb/data"] = frames
        file["ovc/ts"] = 40_000 * np.arange(10)
        file["ovc/ts_map_prophesee_left_t"] = np.arange(10) * 90
    return root


def five_bytes(events: list[tuple[int, int, int, int]]) -> bytes:
    """N-Caltech101's form of (x, y, p, t)."""
    return b"".join(bytes([x, y, p << 7 | t >> 16, t >> 8 & 255, t & 255]) for x, y, p, t in events)


def ncaltech101(root: Path) -> Path:
    rows = [(i % 200, i % 150, i % 2, i * 1000) for i in range(300)]
    for name in ("car_side", "Faces_easy"):
        folder = root / "Caltech101" / name
        folder.mkdir(parents=True)
        (folder / "image_0001.bin").write_bytes(five_bytes(rows))
    return root


def eventgpt(root: Path) -> Path:
    """A conversation of two turns about a numbered clip, and one about a recording that is missing."""
    from crossdraft.events import write_eventgpt_npy

    (root / "interlaken_00_c").mkdir(parents=True)
    write_eventgpt_npy(root / "interlaken_00_c" / "000069.npy", made_up(50))
    turns = [
        {"from": "human", "value": "<event>\nWhat is ahead?"}, {"from": "gpt", "value": "A car."},
        {"from": "human", "value": "Is it dark?"}, {"from": "gpt", "value": "No."},
    ]  # fmt: skip
    rows = [
        {"id": "a", "event_data": "interlaken_00_c/000069.npy", "conversations": turns},
        {"id": "b", "event_data": "interlaken_00_c/000079.npy", "conversations": turns[:2]},
    ]
    write_json(root / "EventGPT_Instruction_Subset.json", rows)
    return root
