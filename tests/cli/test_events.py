import json

import numpy as np
import pytest

from crossdraft.cli.main import main
from crossdraft.events import EventLimits, read_events, write_events
from crossdraft.video import iter_frames, probe
from tests.events.helpers import made_up, same
from tests.video.helpers import moving_square


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.h5"
    write_events(path, made_up(4000, 64, 48, start_us=1_000_000, span_us=400_000))
    return path


@pytest.fixture
def video(tmp_path):
    return moving_square(tmp_path / "clip.mp4")


def test_info(recording, capsys):
    assert main(["events", "info", str(recording), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["format"], facts["width"], facts["height"], facts["events"]) == ("dsec", 64, 48, 4000)
    assert facts["start_us"] == read_events(recording).t0
    assert main(["events", "info", str(recording)]) == 0
    captured = capsys.readouterr()
    assert "4,000 events" in captured.out
    assert captured.err == ""  # no terminal, no bar


def test_the_unit_of_the_times_is_checked_and_may_be_given(tmp_path, capsys):
    events = made_up(100, 640, 480, span_us=90_000)
    path, target = str(tmp_path / "a.npz"), str(tmp_path / "b.h5")
    np.savez(path, x=events.x, y=events.y, t=events.t / 1e6, p=events.p)
    assert main(["events", "info", path, "--sensor", "640x480", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["duration_us"] == events.duration_us
    assert "Times are read as seconds: 100 events" in facts["notes"][0]
    for unit, length in (("ms", events.duration_us / 1000), ("s", events.duration_us)):
        assert main(["events", "convert", path, target, "--force", "--sensor", "640x480", "--time-unit", unit]) == 0
        assert read_events(target).duration_us == pytest.approx(length, abs=1)
    np.savez(path, x=events.x, y=events.y, t=np.linspace(0, 2, 100), p=events.p)
    capsys.readouterr()
    assert main(["events", "info", path, "--sensor", "640x480"]) == 2
    assert "give their unit (--time-unit): s, ms, us or ns." in capsys.readouterr().err
    assert main(["events", "info", path, "--sensor", "640x480", "--time-unit", "days"]) == 2
    assert "--time-unit is 'days'; give one of s, ms, us, ns" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["b.npy", "b.txt", "b.zip", "b.h5"])
def test_convert_whole_and_in_part(recording, tmp_path, capsys, name):
    events, target = read_events(recording), tmp_path / name
    assert main(["events", "convert", str(recording), str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 4000
    assert same(read_events(target, sensor=(64, 48)), events)
    span = ["--start", "0.1", "--end", "0.2"]
    assert main(["events", "convert", str(recording), str(target), *span]) == 2
    assert same(read_events(target, sensor=(64, 48)), events)
    assert main(["events", "convert", str(recording), str(target), *span, "--force"]) == 0
    part = events.slice(events.t0 + 100_000, events.t0 + 200_000)
    assert same(read_events(target, sensor=(64, 48)), part)


def test_a_bag_becomes_a_clip_and_a_recording_on_one_clock(tmp_path, capsys):
    pytest.importorskip("rosbags")
    from tests.events.test_rosbag import START_US, Bag

    events, bag = made_up(4000, 64, 48, start_us=START_US, span_us=500_000), Bag(ros1=True)
    offsets = [60_000, 93_333, 101_000, 400_001]
    for index, offset in enumerate(offsets):
        bag.add_image("/image", START_US + offset, np.full((48, 64, 3), 60 * index, np.uint8))
    bag.add_array("/dvs/left", events)
    bag.add_array("/dvs/right", made_up(10))
    path, clip, target = bag.write(tmp_path / "a.bag", "bag"), tmp_path / "clip.mp4", tmp_path / "b.h5"
    command = ["events", "convert", str(path), str(target), "--video-out", str(clip)]
    assert main(command) == 2
    assert "/dvs/left, /dvs/right; name one" in capsys.readouterr().err
    assert not clip.exists()
    assert main([*command, "--topic", "/dvs/left", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    start_us = START_US + offsets[0]
    assert (found["video"], found["frames"], found["start_us"]) == (str(clip), 4, start_us)
    shown = events.slice(start_us, 1 << 60)
    assert found["events"] == len(shown)
    assert np.array_equal(read_events(target).t, shown.t - start_us)
    frames = list(iter_frames(clip))
    assert [round(time_s * 1e6) for time_s, _ in frames] == [offset - offsets[0] for offset in offsets]
    assert [round(pixels.mean() / 60) for _, pixels in frames] == [0, 1, 2, 3]
    assert main([*command, "--topic", "/dvs/left", "--json", "--force", "--start", "0.08", "--end", "0.2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["frames"], found["start_us"]) == (2, START_US + offsets[1])
    assert main(["events", "info", str(path), "--format", "rosbag:/dvs/right"]) == 0


def test_view_writes_images_and_a_film(recording, tmp_path, capsys):
    folder, film, slow = tmp_path / "frames", tmp_path / "film.mp4", tmp_path / "slow.mp4"
    assert main(["events", "view", str(recording), "--out", str(folder), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 5
    assert len(list(folder.iterdir())) == 5
    assert main(["events", "view", str(recording), "--out", str(film), "--fps", "20"]) == 0
    info = probe(film)
    assert (info.width, info.height, info.frames) == (64, 48, 8)
    assert main(["events", "view", str(recording), "--out", str(slow), "--fps", "20", "--speed", "0.1"]) == 0
    assert (probe(slow).frames, probe(slow).fps) == (80, 20)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["info", "absent.h5"], "no event recording"),
        (["info", "a.h5", "--sensor", "big"], "no size"),
        (["info", "a.h5", "--format", "avi"], "no event format"),
        (["convert", "a.h5", "b.avi"], "suffixes"),
        (["convert", "a.h5", "b.npy", "--start", "2", "--end", "1"], "before it starts"),
        (["convert", "a.h5", "b.npy", "--end", "inf"], "The end of the span is inf s"),
        (["convert", "a.h5", "b.npy", "--start", "nan"], "The start of the span is nan s"),
        (["convert", "a.h5", "b.npy", "--start", "1e300"], "The start of the span is 1e+300 s"),
        (["view", "a.h5", "--out", "frames", "--end", "-inf"], "The end of the span is -inf s"),
        (["view", "gap.txt", "--out", "film.mp4"], "which is 2000000 frames"),
        (["info", "a.h5", "--sensor", "9" * 5000 + "x1"], "no size"),
        (["view", "a.h5", "--out", "frames", "--frames", "5000"], "cannot fill"),
        (["convert", "a.h5", "b.h5", "--video-out", "b.mp4"], "a.h5 is dsec and has none"),
        (["convert", "a.h5", "b.h5", "--video-out", "clip.mp4"], "clip.mp4 exists"),
        (["convert", "a.h5", "b.h5", "--topic", "/a"], "a.h5 is no bag of ROS 1 or 2"),
        (["convert", "a.h5", "a.h5"], "a.h5 is the file that is read"),
        (["convert", "a.h5", "../{folder}/a.h5", "--force"], "is the file that is read"),
        (["convert", "a.h5", "gap.txt"], "gap.txt exists; add --force"),
        (["view", "a.h5", "--out", "clip.mp4"], "clip.mp4 exists; add --force"),
        (["convert", "a.h5", "nowhere/b.npy"], "There is no folder"),
        (["convert", "a.h5", "b.npy", "--start", "-1"], "The start of the span is -1.0 s"),
        (["convert", "a.h5", "b.npy", "--max-events", "3999"], "more than 3,999 events"),
        (["info", "a.h5", "--max-events", "3999"], "more than 3,999 events"),
        (["info", "a.h5", "--sensor", "60000x60000"], "more than 9,437,184 pixels"),
        (["view", "a.h5", "--json"], "--json reports on what is written; name it by --out"),
        (["view", "a.h5", "--speed", "0"], "--speed is 0"),
        (["view", "a.h5", "--start", "7"], "No event lies between"),
        (["view", "absent.h5"], "no event recording"),
        (["view", "a.h5", "--out", "a.gif"], "Cannot draw events as .gif"),
        (["view", "a.h5", "--out", "clip.mp4/frames"], "Cannot write"),
        (["view", "a.h5", "--out", "gap.txt"], "gap.txt is a file"),
        (["render", "a.h5", "frames"], "crossdraft events view RECORDING --out FOLDER."),
        (["simulate", "clip.mp4", "b.h5", "--seed", "3"], "crossdraft data simulate, in crossdraft-lab."),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(recording, video, tmp_path, monkeypatch, capsys, command, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gap.txt").write_text("64 48\n0 1 1 1\n80000 2 2 1\n")
    before = sorted(tmp_path.iterdir())
    assert main(["events", *(word.format(folder=tmp_path.name) for word in command)]) == 2
    complaint = capsys.readouterr().err.strip().splitlines()
    assert len(complaint) == 1
    assert words in complaint[0]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("width", "height", "lines"), [(64, 48, 1), (640, 480, 0), (480, 640, 1)])
def test_a_file_that_forgets_its_sensor_says_how_to_read_it(tmp_path, capsys, width, height, lines):
    events, target = made_up(50, width, height), tmp_path / "b.npy"
    write_events(tmp_path / "a.h5", events)
    assert main(["events", "convert", str(tmp_path / "a.h5"), str(target)]) == 0
    warning = capsys.readouterr().err.strip().splitlines()
    assert len(warning) == lines
    if lines:
        assert f"read it again with --sensor {width}x{height}" in warning[0]
    assert main(["events", "info", str(target), "--sensor", f"{width}x{height}", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["width"], facts["height"]) == (width, height)


def test_a_folder_of_images_may_have_a_dot_in_its_name(recording, tmp_path):
    for name in ("frames.2", "there.png"):
        (tmp_path / "there.png").mkdir(exist_ok=True)
        assert main(["events", "view", str(recording), "--out", str(tmp_path / name), "--frames", "2"]) == 0
        assert len(list((tmp_path / name).iterdir())) == 2


def test_max_events_raises_the_limit(recording, tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft.events.limits.DEFAULT_LIMITS", EventLimits(events=100, scanned=100))
    for command in (["convert", str(recording), str(tmp_path / "b.npy")], ["info", str(recording)]):
        assert main(["events", *command]) == 2
        assert main(["events", *command, "--max-events", "4000"]) == 0


def test_what_was_repaired_is_said(tmp_path, capsys):
    words = np.array([0x8005, 0x6009, 0x0001, 0x2001, 0x6003, 0x2002], "<u2")
    (tmp_path / "a.raw").write_bytes(b"% evt 3.0\n% geometry 640x480\n% end\n" + words.tobytes())
    note = "Events that came late, up to 6 µs, and were put in order: 1."
    assert main(["events", "info", str(tmp_path / "a.raw"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [note]
    assert main(["events", "info", str(tmp_path / "a.raw")]) == 0
    assert note in capsys.readouterr().out
    for command in (["convert", str(tmp_path / "a.raw"), str(tmp_path / "a.h5")], ["view", str(tmp_path / "a.raw")]):
        assert main(["events", *command]) == 0
        assert note in capsys.readouterr().err
