"""`crossdraft edge` with a camera and an event camera on loopback: each question is about what they saw last."""

import json
from dataclasses import replace

import pytest

from crossdraft.cli.main import app, run
from tests.cli.test_watch_live import Camera, free_port
from tests.edge.conftest import QUESTION, TOKENS
from tests.edge.test_edge import at
from tests.streams.live.test_read import event_camera


@pytest.fixture
def events_port():
    with event_camera() as port:
        yield port


def test_questions_are_about_what_the_cameras_saw_last(start, events_port, capsys, monkeypatch):
    running, port = start(), free_port()
    asked, whole = [], running.engine.astream
    monkeypatch.setattr(running.engine, "astream", lambda one, **more: (asked.append(one), whole(one, **more))[1])
    live = ["--events", f"live:evt:tcp://127.0.0.1:{events_port}", "--video", f"live:tcp://127.0.0.1:{port}"]
    more = ["--window", "1s", "--max-new-tokens", str(TOKENS), "--prompt", QUESTION, "--prompt", QUESTION, "--json"]
    with Camera(port):
        assert run(app, ["edge", "--server", at(running), *live, *more]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == len(asked) == 2
    for answer, request in zip(answers, asked, strict=True):
        assert tuple(answer["tokens"]) == running.engine.alone(replace(request, events=None)).tokens
        assert answer["drafter_error"] is None
        assert all(answer["live"][name]["received"] > 10 for name in ("video", "events"))
    assert answers[0]["frames"]["draft"]
    first, second = (request.visuals[0] for request in asked)
    assert first != second
    assert not running.service.media.files.spooled  # the clips are deleted


def test_a_camera_that_is_not_there_has_one_sentence(start, capsys):
    port = free_port()
    live = ["--events", f"live:evt:tcp://127.0.0.1:{port}", "--prompt", QUESTION]
    assert run(app, ["edge", "--server", at(start()), *live]) == 2
    assert f"live:evt:tcp://127.0.0.1:{port} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (["--events", "live:tcp://camera.test:7777"], "which is not allowed; say --live-host camera.test"),
        (["--video", "live:http://127.0.0.1/", "--drafter", "none"], "no address of live video"),
        (["--events", "live:evt:-", "--window", "0s"], "--window is '0s'"),
    ],
)
def test_bad_sources_have_one_sentence(start, capsys, source, words):
    assert run(app, ["edge", "--server", at(start()), "--prompt", QUESTION, *source]) == 2
    assert words in capsys.readouterr().err
