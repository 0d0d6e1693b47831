"""What is looked at before a model is loaded."""

import subprocess
import sys

import numpy as np
import pytest

from crossdraft import api
from crossdraft.cli import inputs
from crossdraft.cli.inputs import HOUR_US, Clock, Part, check_files, size_of
from crossdraft.engine.runner.parallel import POLICIES
from crossdraft.engine.runner.runner import HIDDEN_MODES
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Newest, read_events, write_dsec_h5


def test_names_that_are_checked_early_are_those_that_are_known():
    assert tuple(name for name in api.PLACEMENTS if name != "auto") == inputs.PLACEMENTS
    assert ("auto", *POLICIES) == inputs.AHEAD
    assert inputs.HIDDEN == HIDDEN_MODES


WRONG = [
    ["ask", "--video=VIDEO", "--placement=edge", "?"],
    ["ask", "--video=VIDEO", "--ahead=far", "?"],
    ["ask", "--video=VIDEO", "--drafter=union:ngram,memry", "?"],
    ["chat", "--video=VIDEO", "--drafter=ngram:longest"],
    ["ask", "--video=VIDEO", "--frames=0", "?"],
    ["ask", "--video=VIDEO", "--target-cores=4096", "?"],
    ["ask", "--video=VIDEO", "--dtype=int3", "?"],
    ["ask", "--video=VIDEO", "--device=abacus", "?"],
    ["ask", "--video=VIDEO", "--rule=blok", "?"],
    ["ask", "--video=VIDEO", "--temperature=-1", "?"],
    ["ask", "--video=VIDEO", "--max-new-tokens=0", "?"],
    ["chat", "--video=nowhere.mp4"],
    ["chat", "--video=VIDEO", "--fps=0"],
    ["bench", "--pairs=0"],
    ["bench", "--methods=evnt"],
    ["bench", "--methods=event", "--drafter=memry"],
    ["bench", "--max-new-tokens=0"],
    ["bench", "--dtype=int3"],
    ["bench", "--json-out=."],
    ["replay", "nowhere.jsonl"],
    ["convert", "eventgpt", "nowhere", "NEW"],
    ["capture", "NEW", "--layers=two"],
]


def test_what_values_tell_by_themselves_is_told_before_anything_heavy_is_imported(clip, tmp_path):
    named = {"NEW": str(tmp_path / "new")}
    commands = [[named.get(word, word).replace("VIDEO", str(clip.video)) for word in command] for command in WRONG]
    code = (
        "import sys; from crossdraft.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    status, heavy = main(command), 'transformers.modeling_utils' in sys.modules\n"
        "    assert status == 2 and not heavy, (command, status, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(WRONG)
    assert not list(tmp_path.iterdir())


def recording(path, first_us):
    t = np.array([first_us, first_us + 1000])
    write_dsec_h5(path, Events.checked([0, 1], [0, 1], t, [0, 1], 64, 64))
    return path


def test_a_clip_of_one_moment_passes(clip):
    excerpt = check_files(clip.video, clip.events, Clock.AUTO)
    assert len(excerpt.read()) == len(read_events(clip.events))
    assert check_files(clip.video, None, Clock.AUTO) is None


@pytest.mark.parametrize(("clock", "first"), [(Clock.AUTO, 0), (Clock.OWN, 0), (Clock.AUTO, 2 * HOUR_US)])
def test_of_a_long_recording_only_the_video_s_second_is_read(clip, tmp_path, clock, first):
    t = first + np.arange(0, 10_000_000, 100_000)
    zeros = np.zeros(len(t), int)
    path = tmp_path / "drive.h5"
    write_dsec_h5(path, Events.checked(zeros, zeros, t, zeros, 64, 64))
    assert len(check_files(clip.video, path, clock).read()) == 10


@pytest.mark.parametrize("clock", [Clock.AUTO, Clock.VIDEO])
def test_events_after_the_video_do_not(clip, tmp_path, clock):
    late = recording(tmp_path / "late.h5", 1_500_000)
    with pytest.raises(CrossdraftError, match=r"begin 1.500 s after the video, which lasts 1.000 s; .*--clock own"):
        check_files(clip.video, late, clock)
    check_files(clip.video, late, Clock.OWN)


def test_times_beyond_an_hour_are_a_clock_of_their_own(clip, tmp_path):
    sensor = recording(tmp_path / "sensor.h5", 2 * HOUR_US)
    check_files(clip.video, sensor, Clock.AUTO)
    with pytest.raises(CrossdraftError, match="No overlap in time"):
        check_files(clip.video, sensor, Clock.VIDEO)


def test_missing_and_empty_files_are_named(clip, tmp_path):
    with pytest.raises(CrossdraftError, match=r"nowhere\.mp4"):
        check_files(tmp_path / "nowhere.mp4", clip.events, Clock.AUTO)
    with pytest.raises(CrossdraftError, match=r"nowhere\.h5"):
        check_files(clip.video, tmp_path / "nowhere.h5", Clock.AUTO)
    empty = tmp_path / "empty.h5"
    write_dsec_h5(empty, Events.empty(64, 64))
    with pytest.raises(CrossdraftError, match=r"empty\.h5 holds no events"):
        check_files(clip.video, empty, Clock.AUTO)


def test_a_recording_that_does_not_say_what_it_is(clip, tmp_path):
    path = tmp_path / "a.rec"
    path.write_text("0.5 1000 700 1\n0.6 1279 719 0\n")
    excerpt = check_files(clip.video, path, Clock.AUTO, "e2vid", (1280, 720))
    found = excerpt.read()
    assert (found.width, found.height, found.t.tolist()) == (1280, 720, [500_000, 600_000])
    with pytest.raises(CrossdraftError, match="no format that we know"):
        check_files(clip.video, path, Clock.AUTO)
    with pytest.raises(CrossdraftError, match="outside the 640x480 sensor"):
        check_files(clip.video, path, Clock.AUTO, "e2vid", (640, 480))


def drive(path, first_us):
    """Ten seconds, an event every 10 ms."""
    t = first_us + np.arange(0, 10_000_000, 10_000)
    zeros = np.zeros(len(t), int)
    write_dsec_h5(path, Events.checked(zeros, zeros, t, zeros, 64, 64))
    return path


@pytest.mark.parametrize("first", [0, 2 * HOUR_US])
def test_a_part_of_a_clip_s_events_is_told_in_seconds_of_the_clip(clip, tmp_path, first):
    path, size = drive(tmp_path / "drive.h5", first), Newest(50_000, 5)

    def times(part: Part) -> list[int]:
        excerpt = check_files(clip.video, path, Clock.AUTO, part=part)
        return [int(t) - first for window in excerpt.read_windows(size) for t in window.t]

    assert times(Part()) == list(range(950_000, 1_000_000, 10_000))
    assert times(Part(end_s=0.5)) == list(range(450_000, 500_000, 10_000))
    assert times(Part(0.2, 0.5)) == list(range(200_000, 500_000, 10_000))
    assert times(Part(0.7)) == list(range(700_000, 1_000_000, 10_000))
    assert times(Part(windows=5)) == [10_000 * i for i in (0, 25, 49, 74, 99)]


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (-1, None, "--events-start is -1 s"),
        (None, float("nan"), "--events-end is nan s"),
        (0.5, 0.5, "must lie behind"),
        (1.5, None, "the clip lasts 1.000 s"),
    ],
)
def test_a_part_without_sense_is_one_sentence(clip, start, end, words):
    with pytest.raises(CrossdraftError, match=words):
        check_files(clip.video, clip.events, Clock.AUTO, part=Part(start, end))


def test_sizes():
    assert size_of(None) is None
    assert size_of("640x480") == size_of("640X480") == (640, 480)
    for text in ("big", "640", "640x", "-1x5", "1.5x2", "²x3", "9" * 5000 + "x1", "1x2x3"):
        with pytest.raises(CrossdraftError, match="write it like 640x480"):
            size_of(text)
