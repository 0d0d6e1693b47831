"""`crossdraft ask` about a recording that does not say itself what it is."""

import json
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest

from crossdraft.cli.main import main
from crossdraft.events import read_events, write_events


@pytest.fixture
def headless(clip, tmp_path):
    """The clip's events as text without the line of the sensor's size, under a name that says nothing; and the size."""
    events = read_events(clip.events)
    write_events(tmp_path / "a.txt", events)
    (tmp_path / "a.rec").write_text((tmp_path / "a.txt").read_text().split("\n", 1)[1])
    return tmp_path / "a.rec", f"{events.width}x{events.height}"


@pytest.fixture
def ask(pair, clip, capsys):
    """Run `ask` on this recording; returns its status, standard output and standard error."""

    def run(events, *options: str) -> tuple[int, str, str]:
        models = ["--target", str(pair.target), "--drafter", str(pair.event), "--device", "cpu"]
        common = ["--placement", "inline", "--hidden", "before", "--no-adaptive", "--max-new-tokens", "8", "--json"]
        files = ["--video", str(clip.video), "--events", str(events)]
        status = main(["ask", *files, *models, *common, *options, "What is ahead?"])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_format_and_sensor_are_passed_down_to_the_drafter(ask, clip, headless):
    recording, size = headless
    status, shown, errors = ask(recording, "--format", "e2vid", "--sensor", size)
    assert (status, errors) == (0, "")
    usual = json.loads(ask(clip.events)[1])
    assert json.loads(shown)["stats"]["accepted"] == usual["stats"]["accepted"]
    assert json.loads(shown)["tokens"] == usual["tokens"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "no format that we know"),
        (["--format", "e2vid"], "give the sensor size"),
        (["--format", "e2vid", "--sensor", "big"], "no size"),
        (["--format", "e2vid", "--sensor", "2x2"], "outside the 2x2 sensor"),
        (["--format", "avi"], "no event format"),
    ],
)
def test_without_them_it_is_one_sentence(ask, headless, options, sentence):
    status, shown, errors = ask(headless[0], *options)
    assert (status, shown) == (2, "")
    assert sentence in errors
    assert len(errors.splitlines()) == 1


@pytest.fixture
def damaged(clip, tmp_path):
    """The clip, of which only two thirds are left."""
    content, path = clip.video.read_bytes(), tmp_path / "cut.mp4"
    begin = content.index(b"mdat")
    path.write_bytes(content[: begin + (len(content) - begin) * 2 // 3])
    return path


def test_what_is_wrong_with_a_clip_stands_once_and_with_the_answer(pair, clip, damaged, capsys):
    command = ["ask", "What is ahead?", "--video", str(damaged), "--events", str(clip.events), "--compare"]
    command += ["--target", str(pair.target), "--drafter", str(pair.event), "--device", "cpu"]
    command += ["--placement", "inline", "--max-new-tokens", "6", "--clock", "own", "--no-adaptive"]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.err == ""
    (note,) = report["notes"]
    assert re.fullmatch(r".*cut\.mp4 is cut off or damaged: only \d+ of its 24 frames can be read\.", note)
    assert report["compare"]["notes"] == []
    assert main([*command, "--no-color"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("cut off or damaged") == 1
    assert f"\nNote: {note}\n" in captured.out


def test_a_warning_has_the_prefix_of_an_error(damaged, tmp_path):
    command = ["data", "simulate", str(damaged), str(tmp_path / "out.h5")]
    run = subprocess.run([sys.executable, "-m", "crossdraft", *command], capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert re.fullmatch(r"crossdraft: \S*cut\.mp4 is cut off or damaged: only \d+ of its 24 frames .*\.\n", run.stderr)


@pytest.fixture
def beyond(clip, tmp_path):
    """The clip's recording, too long to be read at once; one late event lies outside the sensor."""
    events, path = read_events(clip.events), tmp_path / "beyond.h5"
    rows = np.sort(np.arange(200_000) % len(events))
    write_events(path, events.take(rows))
    with h5py.File(path, "r+") as file:
        file["events/x"][-10] = 5000
    return path


def test_a_damaged_recording_is_refused_if_it_is_read_and_only_then(ask, beyond):
    """The first events, which every command looks at, are whole; the drafter reads the last ones."""
    status, shown, errors = ask(beyond)
    assert (status, shown) == (2, "")
    assert errors.startswith("crossdraft: The drafter cannot use what was given: ")
    assert errors.endswith("so copy it again. Mend that, or say --drafter none.\n")
    assert "(--sensor, --format)" in errors
    assert len(errors.splitlines()) == 1
    status, shown, errors = ask(beyond, "--drafter", "ngram")  # reads no events
    assert (status, errors) == (0, "")
    report = json.loads(shown)
    assert report["notes"] == [*filter(None, [report["stats"]["undrafted"]])]
