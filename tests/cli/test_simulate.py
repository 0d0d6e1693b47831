"""`crossdraft data simulate`."""

import json

import pytest

from crossdraft.cli.main import main
from crossdraft.events import read_events, write_events
from tests.events.helpers import made_up, same
from tests.video.helpers import moving_square


@pytest.fixture
def video(tmp_path):
    return moving_square(tmp_path / "clip.mp4")


def test_a_video_becomes_a_recording(video, tmp_path, capsys):
    first, second, small = (tmp_path / name for name in ("a.h5", "b.h5", "small.h5"))
    assert main(["data", "simulate", str(video), str(first), "--preset", "clean", "--seed", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    events = read_events(first)
    assert report == {
        "path": str(first),
        "events": len(events),
        "dropped": 0,
        "width": 64,
        "height": 48,
        "seconds": 1.0,
    }
    assert len(events) > 1000
    assert (events.width, events.height) == (64, 48)
    assert 0 <= events.t0 < 960_000
    assert events.t0 + events.duration_us <= 960_000
    assert main(["data", "simulate", str(video), str(second), "--preset", "clean", "--seed", "3"]) == 0
    assert same(read_events(second), events)
    options = ["--sensor", "32x32", "--steps", "4", "--preset", "ideal"]
    assert main(["data", "simulate", str(video), str(small), *options]) == 0
    shrunk = read_events(small)
    assert (shrunk.width, shrunk.height) == (32, 32)
    assert shrunk.y.min() >= 4  # 64x48 fits as 32x24, centred: four black rows above
    assert shrunk.y.max() < 28


def test_a_limited_readout_says_what_it_dropped(video, tmp_path, capsys):
    options = ["--preset", "clean", "--max-rate", "1", "--json"]
    assert main(["data", "simulate", str(video), str(tmp_path / "b.h5"), *options]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["dropped"] > 0
    assert "dropped" in captured.err


def test_a_file_that_forgets_its_sensor_says_how_to_read_it(video, tmp_path, capsys):
    assert main(["data", "simulate", str(video), str(tmp_path / "b.npy"), "--preset", "ideal"]) == 0
    assert "--sensor 64x48" in capsys.readouterr().err


def test_a_rate_below_zero_is_named_by_its_option(video, tmp_path, capsys):
    assert main(["data", "simulate", str(video), str(tmp_path / "a.h5"), "--max-rate=-1"]) == 2
    assert "--max-rate is -1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["absent.mp4", "b.h5"], "absent.mp4"),
        (["a.h5", "b.h5"], "not a video"),
        (["clip.mp4", "b.avi"], "suffixes"),
        (["clip.mp4", "b.h5", "--sensor", "100000x100000"], "more than 9,437,184 pixels"),
        (["clip.mp4", "clip.mp4"], "clip.mp4 is the file that is read"),
        (["clip.mp4", "a.h5"], "a.h5 exists; add --force"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(video, tmp_path, monkeypatch, capsys, command, words):
    monkeypatch.chdir(tmp_path)
    write_events(tmp_path / "a.h5", made_up(40, 64, 48))
    before = sorted(tmp_path.iterdir())
    assert main(["data", "simulate", *command]) == 2
    (complaint,) = capsys.readouterr().err.strip().splitlines()
    assert words in complaint
    assert sorted(tmp_path.iterdir()) == before
