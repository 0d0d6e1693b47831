"""What is looked at before a model is loaded."""

import json
import subprocess
import sys
from dataclasses import dataclass
from shutil import copytree
from socket import create_server
from typing import Annotated

import numpy as np
import pytest
import typer

from crossdraft.cli.main import main, run
from crossdraft.cli.options import RecordingClock, RecordingOptions, option_groups, size_of
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Newest, read_events, write_dsec_h5
from crossdraft.events.excerpt import HOUR_US
from crossdraft.options import OPTIONS

WRONG = [
    ["ask", "--video=VIDEO", "--placement=edge", "?"],
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
    ["ask", "--video=VIDEO", "--device-map=both", "?"],
    ["bench", "--pairs=0"],
    ["bench", "--methods=evnt"],
    ["bench", "--methods=event", "--drafter=memry"],
    ["bench", "--max-new-tokens=0"],
    ["bench", "--dtype=int3"],
    ["bench", "--json-out=."],
    ["replay", "nowhere.jsonl"],
    ["convert", "eventgpt", "nowhere", "NEW"],
    ["capture", "NEW", "--layers=two"],
    ["align", "nowhere", "foreign", "scenes", "NEW"],
    ["align", "reference", "foregn", "scenes", "NEW"],
    ["align", "reference", "foreign", "scnes", "NEW"],
    ["align", "reference", "foreign", "scenes", "NEW", "--tune=half"],
    ["serve", "--target=nowhere"],
    ["serve", "--drafter=memry"],
]


def test_what_values_tell_by_themselves_is_reported_before_anything_heavy_is_imported(clip, tmp_path):
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


AT_ONCE = [
    ("serve --port=TAKEN", "Cannot listen on 127.0.0.1 port"),
    ("serve --media-root=nowhere", "There is no media folder"),
    ("serve --upload-folder=TEXT", "is no folder; name another"),
    ("serve --keys-file=nowhere", "nowhere"),
    ("serve --tls-cert=nowhere", "cannot be used"),
    ("serve --device=cuda:9", "--device is 'cuda:9', which cannot be used here; choose cpu."),
    ("serve --drafter=eagle2:dir=nowhere", "There is no folder nowhere"),
    ("serve --target=EMPTY", "lacks config.json"),
    ("ask --video=VIDEO --device=cuda ?", "--device is 'cuda', which cannot be used here; choose cpu."),
    ("ask --video=VIDEO --draft-device=cuda:9 ?", "--draft-device is 'cuda:9'"),
    ("ask --video=VIDEO --frames=8 --fps=2 ?", "--frames is 8 and --fps is 2.0; give one of them"),
    ("ask --video=VIDEO --placement=process --hidden=before ?", "--placement is 'process' and --hidden is 'before'"),
    ("demo --drafter=nosuch", "nosuch"),
    ("demo --out=TEXT", "is a file; name another folder"),
    ("demo --max-new-tokens=-1 --out=NEW", "--max-new-tokens is -1"),
    ("replay TEXT --drafter=union:trace,glanse", "glanse"),
    ("replay TEXT --drafter=union:trace,event", "needs a target, which recorded answers lack; name memory, ngram"),
    ("ask --video=nowhere ?", "There is no video file at nowhere"),
    ("ask --video=TEXT ?", "is not a video we read"),
    ("ask --image=VIDEO ?", "is not an image we read; give a PNG, JPEG, WebP or BMP file, a GIF as a video."),
    ("ask --image=nowhere ?", "There is no image file at nowhere"),
    ("ask --image=EMPTY ?", "There is no image file at"),
    ("ask --video=VIDEO --drafter=glance ?", "The drafter glance needs an event recording; give one with --events"),
    ("chat --video=VIDEO --drafter=phased:ngram,event", "The drafter phased:ngram,event needs an event recording"),
    ("watch --video=VIDEO --ask=? --drafter=union:memory,(event:words=2)", "needs an event recording"),
    ("ask --video=VIDEO --drafter=model ?", "The drafter 'model' needs a folder"),
    ("ask --video=VIDEO --drafter=model:dir=nowhere ?", "neither the name of a shipped model (text) nor a folder"),
    ("ask --video=VIDEO --drafter=model:dir=EMPTY ?", "lacks config.json"),
    ("ask --video=VIDEO --drafter=union:memory,(model:dir=nowhere) ?", "nor a folder"),
    ("ask --video=VIDEO --drafter=event:dir=nowhere ?", "nor a folder"),
    ("ask --video=VIDEO --drafter=eagle2:dir=EMPTY ?", "holds no head"),
    ("ask --video=VIDEO --drafter=online:(eagle2:dir=nowhere) ?", "There is no folder nowhere"),
    ("ask --video=VIDEO --drafter=event_medusa:dir=nowhere ?", "There is no folder nowhere"),
    ("ask --video=VIDEO --drafter=event_medusa:model=blind ?", "belongs to another event model than 'blind'"),
    ("ask --video=VIDEO --drafter=glance:heads=nowhere ?", "There is no folder nowhere"),
    ("ask --video=VIDEO --drafter=aligned ?", "needs the folder of an adapter"),
    ("ask --video=VIDEO --drafter=aligned:dir=nowhere ?", "There is no folder nowhere"),
    ("ask --video=VIDEO --drafter=predicted:dir=nowhere ?", "There is no folder nowhere"),
    ("ask --video=VIDEO --drafter=memory:folder=TEXT ?", "which is no folder"),
    ("ask --video=VIDEO --drafter=memory:seed=nowhere ?", "is not there"),
    ("ask --video=VIDEO --target=LANGUAGE ?", "holds a text model, and clips"),
    ("ask --video=VIDEO --target=REFUSED ?", "runs code of its own"),
    ("ask --video=VIDEO --target=EMPTY ?", "lacks config.json"),
    ("chat --video=VIDEO --target=NO_WEIGHTS", "lacks its weights"),
    ("watch --video=VIDEO --ask=? --device=cuda", "--device is 'cuda'"),
    ("edge --server=ws://localhost:1 --prompt=? --drafter=event:dir=nowhere --events=EVENTS", "nor a folder"),
    ("edge --server=ws://localhost:1 --prompt=? --target=nowhere --events=EVENTS", "nor a folder"),
    ("bench --device=cuda", "--device is 'cuda'"),
    ("bench --drafter=model:dir=nowhere", "nor a folder"),
    ("bench --target=LANGUAGE", "holds a text model, which is shown no clips; ask it in words with --prompts FILE"),
    ("capture NEW --device=cuda", "--device is 'cuda'"),
    ("capture NEW --target=LANGUAGE", "holds a text model, and clips"),
    ("capture TEXT", "TEXT"),
    ("train medusa --target=LANGUAGE", "holds a text model, and clips"),
    ("train medusa --device=cuda", "--device is 'cuda'"),
]


def text_checkpoint(folder, pair, **config):
    """The reference-like target with another configuration."""
    copytree(pair.target, folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def named(clip, pair, tmp_path):
    """What the words of `AT_ONCE` stand for; a port is taken meanwhile."""
    written, empty = tmp_path / "text", tmp_path / "empty"
    written.write_text("text")
    empty.mkdir()
    language = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    folders = {
        "LANGUAGE": text_checkpoint(tmp_path / "language", pair, **language),
        "REFUSED": text_checkpoint(tmp_path / "refused", pair, model_type="minicpmv"),
        "NO_WEIGHTS": text_checkpoint(tmp_path / "no-weights", pair, model_type="video_llava"),
    }
    (folders["NO_WEIGHTS"] / "model.safetensors").unlink()
    with create_server(("127.0.0.1", 0)) as server:
        yield {
            "TAKEN": server.getsockname()[1], "VIDEO": clip.video, "EVENTS": clip.events, "TEXT": written,
            "EMPTY": empty, "NEW": tmp_path / "new", **folders,
        }  # fmt: skip


def test_what_is_not_there_is_refused_before_pytorch_is_imported(named, tmp_path):
    def filled(text):
        for name, value in named.items():
            text = text.replace(name, str(value))
        return text

    commands = [(filled(command).split(), filled(said)) for command, said in AT_ONCE]
    code = (
        "import contextlib, io, sys, traceback; from crossdraft.cli.main import main\n"
        "sys.modules['torch'] = None  # importing it fails\n"
        f"for command, said in {commands!r}:\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as shown:\n"
        "        try:\n"
        "            status = main(command)\n"
        "        except ImportError:\n"
        "            status = traceback.format_exc()\n"
        "    if (status, said in shown.getvalue()) != (2, True): print(command, status, shown.getvalue())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert not done.stdout + done.stderr, done.stdout + done.stderr
    assert not named["NEW"].exists()


def recording(path, first_us):
    t = np.array([first_us, first_us + 1000])
    write_dsec_h5(path, Events.checked([0, 1], [0, 1], t, [0, 1], 64, 64))
    return path


def test_a_clip_of_one_moment_passes(clip):
    excerpt = RecordingOptions(clip.events, RecordingClock.AUTO).excerpt(clip.video)
    assert len(excerpt.read()) == len(read_events(clip.events))
    assert RecordingOptions(None, RecordingClock.AUTO).excerpt(clip.video) is None


@pytest.mark.parametrize(
    ("clock", "first"), [(RecordingClock.AUTO, 0), (RecordingClock.OWN, 0), (RecordingClock.AUTO, 2 * HOUR_US)]
)
def test_of_a_long_recording_only_the_video_s_second_is_read(clip, tmp_path, clock, first):
    t = first + np.arange(0, 10_000_000, 100_000)
    zeros = np.zeros(len(t), int)
    path = tmp_path / "drive.h5"
    write_dsec_h5(path, Events.checked(zeros, zeros, t, zeros, 64, 64))
    assert len(RecordingOptions(path, clock).excerpt(clip.video).read()) == 10


@pytest.mark.parametrize("clock", [RecordingClock.AUTO, RecordingClock.VIDEO])
def test_events_after_the_video_do_not(clip, tmp_path, clock):
    late = recording(tmp_path / "late.h5", 1_500_000)
    with pytest.raises(CrossdraftError, match=r"begin 1.500 s after the video, which lasts 1.000 s; .*clock=own"):
        RecordingOptions(late, clock).excerpt(clip.video)
    RecordingOptions(late, RecordingClock.OWN).excerpt(clip.video)


def test_times_beyond_an_hour_are_a_clock_of_their_own(clip, tmp_path):
    sensor = recording(tmp_path / "sensor.h5", 2 * HOUR_US)
    RecordingOptions(sensor, RecordingClock.AUTO).excerpt(clip.video)
    with pytest.raises(CrossdraftError, match="No overlap in time"):
        RecordingOptions(sensor, RecordingClock.VIDEO).excerpt(clip.video)


def test_missing_and_empty_files_are_named(clip, tmp_path):
    with pytest.raises(CrossdraftError, match=r"nowhere\.mp4"):
        RecordingOptions(clip.events, RecordingClock.AUTO).excerpt(tmp_path / "nowhere.mp4")
    with pytest.raises(CrossdraftError, match=r"nowhere\.h5"):
        RecordingOptions(tmp_path / "nowhere.h5", RecordingClock.AUTO).excerpt(clip.video)
    empty = tmp_path / "empty.h5"
    write_dsec_h5(empty, Events.empty(64, 64))
    with pytest.raises(CrossdraftError, match=r"empty\.h5 holds no events"):
        RecordingOptions(empty, RecordingClock.AUTO).excerpt(clip.video)


def test_a_recording_that_does_not_say_what_it_is(clip, tmp_path):
    path = tmp_path / "a.rec"
    path.write_text("0.5 1000 700 1\n0.6 1279 719 0\n")
    excerpt = RecordingOptions(path, kind="e2vid", sensor="1280x720").excerpt(clip.video)
    found = excerpt.read()
    assert (found.width, found.height, found.t.tolist()) == (1280, 720, [500_000, 600_000])
    with pytest.raises(CrossdraftError, match="no format that we know"):
        RecordingOptions(path, RecordingClock.AUTO).excerpt(clip.video)
    with pytest.raises(CrossdraftError, match="outside the 640x480 sensor"):
        RecordingOptions(path, kind="e2vid", sensor="640x480").excerpt(clip.video)


def drive(path, first_us):
    """Ten seconds, an event every 10 ms."""
    t = first_us + np.arange(0, 10_000_000, 10_000)
    zeros = np.zeros(len(t), int)
    write_dsec_h5(path, Events.checked(zeros, zeros, t, zeros, 64, 64))
    return path


@pytest.mark.parametrize("first", [0, 2 * HOUR_US])
def test_a_part_of_a_clip_s_events_is_in_seconds_of_the_clip(clip, tmp_path, first):
    path, size = drive(tmp_path / "drive.h5", first), Newest(50_000, 5)

    def times(**part: float) -> list[int]:
        excerpt = RecordingOptions(path, **part).excerpt(clip.video)
        return [int(t) - first for window in excerpt.read_windows(size) for t in window.t]

    assert times() == list(range(950_000, 1_000_000, 10_000))
    assert times(end_s=5.0) == times()
    assert times(end_s=0.5) == list(range(450_000, 500_000, 10_000))
    assert times(start_s=0.2, end_s=0.5) == list(range(200_000, 500_000, 10_000))
    assert times(start_s=0.7) == list(range(700_000, 1_000_000, 10_000))
    assert times(windows=5) == [10_000 * i for i in (0, 25, 49, 74, 99)]


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (-1, None, "--events-start is -1 s"),
        (None, float("nan"), "--events-end is nan s"),
        (0.5, 0.5, "must lie after"),
        (1.0, None, "the clip lasts 1.000 s"),
        (None, 0.0, "end at 0 s, before they begin"),
    ],
)
def test_a_part_without_sense_is_one_sentence(clip, start, end, words):
    with pytest.raises(CrossdraftError, match=words):
        RecordingOptions(clip.events, start_s=start, end_s=end).excerpt(clip.video)


def test_sizes():
    assert size_of(None) is None
    assert size_of("640x480") == size_of("640X480") == (640, 480)
    for text in ("big", "640", "640x", "-1x5", "1.5x2", "²x3", "9" * 5000 + "x1", "1x2x3"):
        with pytest.raises(CrossdraftError, match="write it like 640x480"):
            size_of(text)


@dataclass
class Group:
    size: Annotated[int, typer.Option(min=1)]
    names: Annotated[list[str] | None, typer.Option("--name")] = None


def test_a_group_of_options_is_one_option_for_each_field(capsys):
    made = []

    @option_groups
    def command(word: str, group: Group, loud: bool = False) -> None:
        made.append((word, group, loud))

    app = typer.Typer()
    app.command()(command)
    assert run(app, ["a", "--size=2", "--name=b", "--name=c", "--loud"]) == 0
    assert made == [("a", Group(2, ["b", "c"]), True)]
    assert run(app, ["a", "--size=0"]) == run(app, ["a"]) == 2
    assert len(made) == 1


def test_chat_takes_the_pair_s_options_as_ask_does(capsys):
    for command in ("ask", "chat"):
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        flags = [option.flag or name for name, option in OPTIONS.items() if not option.shared]
        assert all(f"--{name.replace('_', '-')}" in shown for name in ("target", "drafter", *flags)), command
