"""`/v1/watch` with sources that the server reads: allowed hosts alone, and "no signal" rather than old answers."""

import json
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from crossdraft import Request
from crossdraft.serve.cameras import allowed_source
from crossdraft.serve.errors import ApiError
from crossdraft.streams.live.frames import LiveFrames
from crossdraft.streams.messages import SCHEMA, StreamEnd
from tests.serve.conftest import QUESTION
from tests.serve.test_watch import TOKENS, asked, connected, idle, received
from tests.streams.live.sending import FPS, RtspServer, frames
from tests.streams.live.test_read import event_camera
from tests.test_docs import BLOCK

WINDOWS = {"window_ms": 100, "every_ms": 200, "frames": 2}


def test_a_cameras_answers_are_the_engines_own_and_without_it_there_is_no_signal(start, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.cameras.LiveFrames", partial(LiveFrames, signal_timeout_s=1.0))
    camera = RtspServer(frames(300), 1 / FPS)
    running = start(live_hosts=f"127.0.0.1:{camera.port}")
    requests, whole = [], running.engine.astream
    monkeypatch.setattr(running.engine, "astream", lambda one, **more: (requests.append(one), whole(one, **more))[1])
    with closing(camera), connected(running, asked(live=f"live:rtsp://127.0.0.1:{camera.port}/", **WINDOWS)) as socket:
        found = [json.loads(socket.recv(30))]
        while sum(one["type"] == "window" for one in found) < 2:
            found.append(json.loads(socket.recv(30)))
        camera.close()
        while (found[-1]["type"], found[-1].get("there")) != ("signal", False):
            found.append(json.loads(socket.recv(30)))
        socket.send(SCHEMA.encode(StreamEnd(0.0)))
        *rest, summary = received(socket)
    assert found[0] == {"type": "started", "frames": 2}
    assert summary["signal_losses"] >= 1
    for one in (*(one for one in found if one["type"] in ("heartbeat", "signal")), summary):
        assert one["live"].keys() == {"video"}  # as the command has it
        assert (one["live"]["video"]["received"], one["live"]["video"]["dropped"]) >= (2, 0)
    there = False
    for one in rest:  # no old answer; on a loaded machine the signal may have been lost, and back, before the close
        there = one["there"] if one["type"] == "signal" else there
        assert there or one["type"] != "window"
    said = [one["answers"][0]["tokens"] for one in found if one["type"] == "window"]
    for tokens, request in zip(said, requests, strict=False):
        alone = running.engine.generate(Request(QUESTION, request.video, max_new_tokens=TOKENS))
        assert tokens == list(alone.tokens)
    assert idle(running)
    assert not [one.name for one in threading.enumerate() if f":{camera.port}" in one.name]  # nobody reads it any more


def test_a_camera_that_is_not_there_may_be_asked_for_again_later(start):
    camera = RtspServer([])
    camera.close()
    running = start(live_hosts=f"127.0.0.1:{camera.port}")
    with connected(running, asked(live=f"live:rtsp://me:secret@127.0.0.1:{camera.port}/", **WINDOWS)) as socket:
        *_, last = received(socket)
    assert (last["error"]["code"], socket.close_code) == ("no_signal", 1013)
    assert "secret" not in last["error"]["message"]
    assert idle(running)


def test_the_page_s_program_counts_what_cameras_sent(start, capsys):
    page = (Path(__file__).parents[2] / "docs" / "your_camera.md").read_text(encoding="utf-8")
    (program,) = (one for one in BLOCK.findall(page) if "WatchClient" in one)
    camera = RtspServer(frames(300), 1 / FPS)
    with closing(camera), event_camera() as port:
        running = start(live_hosts=f"127.0.0.1:{camera.port},127.0.0.1:{port}")
        ours = {"camera:8554": f"127.0.0.1:{camera.port}", "camera:7777": f"127.0.0.1:{port}"}
        ours |= {"127.0.0.1:8000": f"127.0.0.1:{running.address[1]}"}
        for name, address in ours.items():
            assert name in program
            program = program.replace(name, address)
        namespace = {}
        exec(compile(program, "your_camera.md", "exec"), namespace)
        assert idle(running)
    *_, last = capsys.readouterr().out.splitlines()
    summary = namespace["message"]
    assert last == f"{summary['windows_answered']} windows of {summary['live']['video']['received']} frames"
    video, events = (summary["live"][name] for name in ("video", "events"))
    assert video["received"] >= 5
    assert events["received"] >= 500  # of 2,000 a second, in a hundred chunks a second
    assert events["source"] == f"live:evt:tcp://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"live": "live:rtsp://127.0.0.1:9/"}, "(--live-hosts)"),
        ({"live": "live:rtsp://127.0.0.1:9/", "replay": {"video_url": "file:clip.mp4"}}, "replayed or live"),
        ({"live_events": "live:tcp://127.0.0.1:9"}, "replayed or live"),
    ],
)
def test_without_listed_hosts_there_are_no_cameras(server, more, words):
    with connected(server, asked(**more)) as socket:
        *_, last = received(socket)
    assert words in last["error"]["message"]
    assert socket.close_code == 1008
    assert idle(server)


@pytest.mark.parametrize(
    ("text", "of", "fine"),
    [
        ("live:rtsp://Camera/main", "video", True),
        ("live:rtsp://me:pass@camera:554/main", "video", True),
        ("live:udp://127.0.0.1:5000", "video", True),
        ("live:tcp://camera:7777", "events", True),
        ("live:udp://[fd00::7]:5000", "video", True),
        ("live:udp://[fd00::8]:5000", "video", False),
        ("live:rtsp://camera:8554/main", "video", False),
        ("live:udp://127.0.0.1:5001", "video", False),
        ("live:rtsp://camera.else.test/main", "video", False),
        ("live:rtsp://camera@else.test/main", "video", False),
        ("live:v4l2:/dev/video0", "video", False),
        ("live:unix:/run/socket", "events", False),
        ("live:evt:-", "events", False),
        ("live:dv", "events", False),
        ("live:bag:/data/a.db3", "events", False),
        ("file:clip.mp4", "video", False),
    ],
)
def test_only_listed_hosts_and_ports_are_allowed(text, of, fine):
    hosts = frozenset({"camera:554", "127.0.0.1:5000", "camera:7777", "[fd00::7]:5000"})
    if fine:
        found = allowed_source(text, of, hosts)
        assert f"{f'[{found.host}]' if ':' in found.host else found.host}:{found.port}" in hosts
        return
    with pytest.raises(ApiError, match=r"\(--live-hosts\)") as refused:
        allowed_source(text, of, hosts)
    assert "else" not in refused.value.message
    assert refused.value.param == ("live" if of == "video" else "live_events")
