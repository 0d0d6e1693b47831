import re

import h5py
import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events
from crossdraft.video import sample_frames
from crossdraft_lab.datasets.catalogue import dataset_in, open_dataset
from crossdraft_lab.datasets.dsec import DsecSequence
from crossdraft_lab.datasets.events_only import text_recordings
from crossdraft_lab.datasets.recorded import ClipPlan, spans
from crossdraft_lab.datasets.stereo_hdf5 import Hdf5Sequence
from tests.datasets.helpers import START_US, dsec, m3ed, mvsec, ncaltech101
from tests.events.helpers import made_up


def cut_off(path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def plan(folder, **settings) -> ClipPlan:
    return ClipPlan(folder, **{"seconds": 0.2, "questions": ("What is ahead?", "Is it dark?"), **settings})


def test_spans_are_half_open_and_no_longer_than_the_frames():
    times = START_US + 50_000 * np.arange(10)
    assert list(spans(times, 0.2)) == [(START_US, START_US + 200_000), (START_US + 200_000, START_US + 400_000)]
    overlapping = list(spans(times, 0.2, 0.1))
    assert [start - START_US for start, _ in overlapping] == [0, 100_000, 200_000, 300_000]
    assert list(spans(times[:1], 0.2)) == []


def test_dsec_clips_hold_the_frames_and_the_events_of_their_span(tmp_path):
    root, out = dsec(tmp_path / "data"), tmp_path / "out"
    assert dataset_in(root) == "dsec"
    reader = open_dataset(root, "dsec", plan(out))
    assert reader.parts() == ["zurich_city_09_a", "zurich_city_09_b"]
    found = list(reader.samples("zurich_city_09_a"))
    assert [one.id for one in found] == [f"zurich_city_09_a/{clip:06d}/{q}" for clip in (0, 1) for q in (0, 1)]
    second = found[2]
    assert (second.start_s, second.end_s) == pytest.approx((START_US / 1e6 + 0.2, START_US / 1e6 + 0.4))
    assert second.kept_together == "zurich_city_09", "consecutive pieces of one drive stay together"
    whole = read_events(root / "train/zurich_city_09_a/events/left/events.h5")
    part = read_events(second.events)
    expected = whole.slice(START_US + 200_000, START_US + 400_000)
    assert np.array_equal(part.t, expected.t)
    assert (part.width, part.height) == (64, 48)
    sample = sample_frames(second.video, 4)
    frames, times = sample.frames, sample.times_s
    assert frames.shape[1:3] == (48, 64), "images are on the event camera's pixels"
    assert times == pytest.approx([0, 0.05, 0.1, 0.15], abs=1e-3)
    centre = frames[:, 24, 32, 0].tolist()
    assert centre == pytest.approx([40, 50, 60, 70], abs=6), "images 4 to 7 of the sequence"


def test_dsec_as_its_archives_unpack(tmp_path):
    root = dsec(tmp_path, ("thun_00_a",))
    folder = root / "train" / "thun_00_a"
    for old, new in (
        ("events/left", "thun_00_a_events_left"), ("images/left/rectified", "thun_00_a_images_rectified_left"),
        ("images/timestamps.txt", "thun_00_a_image_timestamps.txt"), ("calibration", "thun_00_a_calibration"),
    ):  # fmt: skip
        (folder / old).rename(folder / new)
    sequence = DsecSequence(folder)
    assert len(sequence.times_us) == 8
    assert next(sequence.frames(0, 1)).shape == (48, 64, 3)
    assert open_dataset(root, dataset_in(root)).parts() == ["thun_00_a"]


def test_clips_that_are_there_are_not_cut_again(tmp_path):
    reader = open_dataset(dsec(tmp_path / "data"), "dsec", plan(tmp_path / "out"))
    first = [(one.video, one.video.stat().st_mtime_ns) for one in reader.samples("zurich_city_09_a")]
    gone = first[0][0]
    gone.unlink()
    again = [(one.video, one.video.stat().st_mtime_ns) for one in reader.samples("zurich_city_09_a")]
    assert [path for path, _ in again] == [path for path, _ in first]
    assert again[2:] == first[2:]
    assert again[0] != first[0]


def test_a_span_without_events_is_no_clip(tmp_path):
    root = dsec(tmp_path / "data", ("thun_00_a",))
    from crossdraft.events import write_dsec_h5

    path = root / "train/thun_00_a/events/left/events.h5"
    write_dsec_h5(path, made_up(100, 64, 48, START_US + 200_000, 100_000))
    found = list(open_dataset(root, "dsec", plan(tmp_path / "out")).samples("thun_00_a"))
    assert [one.id for one in found] == ["thun_00_a/000001/0", "thun_00_a/000001/1"]


def become_folder(path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (lambda folder: (folder / "images/timestamps.txt").write_text("1\n"), "1 times of images"),
        (lambda folder: (folder / "images/timestamps.txt").write_text("x"), "times of the frames"),
        (lambda folder: (folder / "calibration/cam_to_cam.yaml").unlink(), "no calibration"),
        (lambda folder: (folder / "events/left/rectify_map.h5").unlink(), "no rectify map"),
        (lambda folder: (folder / "events/left/events.h5").write_bytes(b"x" * 99), "damaged|HDF5"),
        (lambda folder: (folder / "images/left/rectified/000000.png").write_bytes(b"x" * 99), "image"),
        (lambda folder: cut_off(folder / "images/left/rectified/000005.png"), "cut off"),
        (lambda folder: become_folder(folder / "images/left/rectified/000005.png"), "cut off, or no PNG"),
    ],
)
def test_what_is_wrong_with_a_sequence_is_named(tmp_path, breaks, words):
    root = dsec(tmp_path, ("thun_00_a",))
    reader = open_dataset(root, "dsec")
    assert list(reader.problems("thun_00_a")) == []
    breaks(root / "train" / "thun_00_a")
    found = [problem.what for problem in open_dataset(root, "dsec").problems("thun_00_a")]
    assert len(found) == 1
    assert re.search(words, found[0]), found
    assert "\n" not in found[0]


def test_mvsec(tmp_path):
    root = mvsec(tmp_path / "data")
    assert dataset_in(root) == "mvsec"
    found = list(open_dataset(root, "mvsec", plan(tmp_path / "out")).samples("indoor_flying1"))
    assert len(found) == 2 * 2
    assert found[0].kept_together == "indoor_flying"
    assert found[0].start_s == pytest.approx(1_504_645_177.0, abs=1e-5), "epoch seconds, not rounded to float32"
    events = read_events(found[2].events)
    assert (events.width, events.height) == (346, 260)
    assert len(events) == pytest.approx(160, abs=2)
    assert sample_frames(found[0].video, 2).frames.shape == (2, 260, 346, 3)


def test_m3ed_colours_are_blue_green_red(tmp_path):
    root = m3ed(tmp_path / "data")
    assert dataset_in(root) == "m3ed"
    sequence = Hdf5Sequence(root / "car_urban_day_horse_data.h5", "m3ed")
    assert next(sequence.frames(0, 1))[0, 0].tolist() == [0, 0, 200]
    found = list(open_dataset(root, "m3ed", plan(tmp_path / "out")).samples("car_urban_day_horse"))
    assert len(found) == 4
    events = read_events(found[0].events)
    assert (events.width, events.height) == (1280, 720)


def test_frames_without_a_time_each(tmp_path):
    root = mvsec(tmp_path)
    with h5py.File(root / "indoor_flying1_data.hdf5", "a") as file:
        del file["davis/left/image_raw_ts"]
        file["davis/left/image_raw_ts"] = 1_504_645_177.0 + np.arange(5) / 31.0
    found = [problem.what for problem in open_dataset(root, "mvsec").problems("indoor_flying1")]
    assert len(found) == 1
    assert "no frame for each time" in found[0]


def test_ncaltech101_asks_what_it_is(tmp_path):
    root = ncaltech101(tmp_path / "data")
    assert dataset_in(root) == "ncaltech101"
    reader = open_dataset(root, "ncaltech101", plan(tmp_path / "out"))
    found = [sample for part in reader.parts() for sample in reader.samples(part)]
    assert [(one.id, one.answers) for one in found] == [
        ("Faces_easy/image_0001", ("faces",)),
        ("car_side/image_0001", ("car side",)),
    ]
    frames = sample_frames(found[0].video, 2).frames
    assert frames.shape == (2, 180, 240, 3)
    assert len(read_events(found[0].events)) == pytest.approx(300, abs=50)


def test_e2vid_text_becomes_clips(tmp_path):
    from crossdraft.events.text import write_e2vid

    root = tmp_path / "data"
    root.mkdir()
    events = made_up(3000, 64, 48, 1_000_000, 500_000)
    write_e2vid(root / "boxes.zip", [events])
    assert dataset_in(root) == "e2vid"
    found = list(open_dataset(root, "e2vid", plan(tmp_path / "out")).samples("boxes"))
    assert len(found) == 4
    part = read_events(found[0].events)
    assert np.array_equal(part.t, events.slice(events.t0, events.t0 + 200_000).t)
    assert sample_frames(found[0].video, 4).frames.shape == (4, 48, 64, 3)


def test_links_to_nothing_are_no_recordings(tmp_path):
    (tmp_path / "gone.zip").symlink_to(tmp_path / "nothing.zip")
    (tmp_path / "folder.txt").mkdir()
    assert text_recordings(tmp_path) == []
    with pytest.raises(CrossdraftError, match="layout of no data set"):
        dataset_in(tmp_path)
    (tmp_path / "boxes.txt").write_text("64 48\n0.1 1 1 1\n")
    assert [path.name for path in text_recordings(tmp_path)] == ["boxes.txt"]


def test_plans_that_make_no_sense():
    for settings, words in (
        ({"seconds": 0.0}, "--seconds"),
        ({"stride_s": -1.0}, "--stride"),
        ({"questions": ()}, "no question"),
    ):
        with pytest.raises(CrossdraftError, match=words):
            ClipPlan(None, **settings)


def test_clips_need_a_place(tmp_path):
    with pytest.raises(CrossdraftError, match="need a folder"):
        next(open_dataset(dsec(tmp_path, ("thun_00_a",)), "dsec").samples("thun_00_a"))
