"""`crossdraft edge`: what is refused before anything is loaded, and what is shown."""

import json
import os
from collections import Counter

import pytest

from crossdraft.cli.edge import _excerpt, figures, report
from crossdraft.cli.main import app, run
from crossdraft.cli.options import RecordingFile
from crossdraft.edge.client import EdgeAnswer, EdgeClient
from crossdraft.errors import CrossdraftError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "needs an event recording"),
        (["--drafter", "glance"], "are not here"),
        (["--drafter", "eagle2"], "are not here"),
        (["--drafter", "nothing"], "no drafter 'nothing'"),
        (["--drafter", "none", "--video", "nosuch.mp4"], "There is no file nosuch.mp4 here"),
        (["--drafter", "none", "--prediction", "nosuch"], "Cannot read nosuch: No such file"),
        (["--drafter", "none", "--server", "http://x"], "give its address as ws://"),
        (["--drafter", "none"], "cannot be reached"),
        (["--draft-top-k", "-1"], "--draft-top-k is -1"),
        (["--drafter", "none", "--patience", "nan"], "--patience is nan"),
        (["--drafter", "none", "--patience", "-1"], "--patience is -1"),
        (["--drafter", "none", "--temperature", "-1"], "temperature is -1"),
        (["--drafter", "none", "--top-p", "2"], "--top-p is 2"),
    ],
)
def test_bad_input_has_one_sentence(arguments, words, capsys):
    assert run(app, ["edge", "--server", "ws://127.0.0.1:9", "--prompt", "?", *arguments]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


def test_a_prediction_that_no_frame_holds_is_refused(tmp_path, capsys):
    (tmp_path / "long").write_text("é" * 6000)
    asked = ["--server", "ws://127.0.0.1:9", "--prompt", "?", "--drafter", "none", "--prediction"]
    assert run(app, ["edge", *asked, str(tmp_path / "long")]) == 2
    assert "--prediction is of more than 32,768 bytes in JSON" in capsys.readouterr().err


def test_an_empty_folder_holds_no_recording(tmp_path, capsys):
    assert run(app, ["edge", "--server", "ws://127.0.0.1:9", "--prompt", "?", "--events", str(tmp_path)]) == 2
    assert "holds no recording" in capsys.readouterr().err


def test_the_newest_recording_of_a_folder_is_none_of_its_clips(tmp_path):
    for seconds, name in enumerate(("old.h5", "clip.H5", "clip.mp4", ".clip.h5", "notes.md")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    found = _excerpt(RecordingFile(tmp_path), None)
    assert found is not None
    assert found.path == tmp_path / "clip.H5"


def test_figures_and_report_of_an_answer():
    metrics = {"hidden_accepted_tokens": 3, "hidden_draft_tokens": 5}
    answer = EdgeAnswer(
        (1, 2), "A van", "stop", (1,), 0.01, 0.1, 0.2, 1, Counter(draft=90, ask=10), Counter(done=7), Counter(draft=2),
        {"metrics": metrics, "edge": {"rtt_ms": 20.5, "reply_ms": 31.0, "mbit_s": 0.5, "policy": "rounds"}},
    )  # fmt: skip
    assert "accepted 3 of 5" in figures(answer)[1]
    assert "round trip 20.5 ms, reply 31.0 ms, 0.5 Mbit/s; policy: rounds" in figures(answer)[1]
    assert "100 bytes, 90 of them drafts in 2 frames; received 7; cuts: 1" in figures(answer)[2]
    assert json.loads(json.dumps(report("?", answer)))["sent"] == {"draft": 90, "ask": 10}


def test_an_address_that_is_none():
    with pytest.raises(CrossdraftError, match="is no address"):
        EdgeClient("ws://", None, "event", bytes(32)).open()
