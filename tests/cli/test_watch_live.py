"""`crossdraft watch` and `events view` with cameras on loopback, on the tiny pair."""

import _thread
import json
import re
import signal
import socket
import threading
import time

import pytest

from crossdraft.cli.main import main
from crossdraft.cli.watch_view import WatchView
from crossdraft.signals import handled
from crossdraft.streams.live.frames import LiveFrames
from crossdraft.video import iter_frames
from tests.streams.live.sending import Sender, connected, picture
from tests.streams.live.test_read import event_camera
from tests.support import encodes_clips

SHORT = ("--every", "300ms", "--window", "0.4s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return made.getsockname()[1]


class Camera:
    """Sends frames to a port in real time, in a thread, while it is on."""

    def __init__(self, port: int) -> None:
        self.on, self._over, self._port = threading.Event(), threading.Event(), port
        self.on.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.is_set():
            if self.on.wait(0.05):
                try:
                    with connected("tcp", self._port) as send:
                        self._send(Sender(send))
                except OSError:  # nothing listens yet, or any more
                    self._over.wait(0.02)

    def _send(self, sender: Sender) -> None:
        start = time.monotonic()
        while self.on.is_set() and not self._over.wait(0.03):
            ms = round(1000 * (time.monotonic() - start))
            sender.frame(picture(ms // 100 % 25), ms)

    def __enter__(self) -> "Camera":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(10)


@pytest.fixture
def events_port():
    with event_camera() as port:
        yield port


@pytest.fixture
def watch(pair, capsys):
    def run(*arguments: str) -> tuple[int, list[dict], str]:
        models = ["--target", str(pair.target), "--drafter", str(pair.event), "--placement", "inline"]
        options = ["--device", "cpu", "--max-new-tokens", "4", "--ask", "What is ahead?", "--json"]
        with handled(signal.default_int_handler, signal.SIGINT):  # which a shell's & has ignored
            status = main(["watch", *models, *options, *SHORT, *arguments])
        captured = capsys.readouterr()
        return status, [json.loads(line) for line in captured.out.splitlines()], captured.err

    return run


@encodes_clips
def test_a_camera_that_stops_has_no_signal_and_comes_back_by_itself(watch, events_port, monkeypatch):
    port, steps = free_port(), ["answer", False, True, "answer"]  # what is to happen, one after another
    answered, signal = WatchView.answered, WatchView.signal

    def happened(step) -> None:
        """A loaded machine may lose the signal at other times, too."""
        if steps and step == steps[0]:
            steps.pop(0)
            if len(steps) == 3:
                camera.on.clear()
            elif len(steps) == 2:
                camera.on.set()
            elif not steps:
                _thread.interrupt_main()  # as Ctrl-C

    def on_answer(self, window):
        answered(self, window)
        happened("answer")

    def on_signal(self, found, *, there):
        signal(self, found, there=there)
        happened(there)

    monkeypatch.setattr(WatchView, "answered", on_answer)
    monkeypatch.setattr(WatchView, "signal", on_signal)
    with Camera(port) as camera:
        status, shown, errors = watch(
            "--video", f"live:tcp://127.0.0.1:{port}", "--events", f"live:evt:tcp://127.0.0.1:{events_port}",
            "--signal-timeout", "0.5",
        )  # fmt: skip
    assert (status, errors) == (0, "")
    *rows, last = shown
    kinds = [row.get("signal", "answer") for row in rows]
    first = kinds.index("answer")
    assert kinds.index(True, kinds.index(False, first)) < len(kinds) - 1
    assert kinds[-1] == "answer"
    assert all(row["live"]["video"]["state"] in ("live", "no signal") for row in rows if "signal" in row)
    found = last["summary"]
    assert found["signal_losses"] >= 1
    assert found["live"]["video"]["reconnects"] >= 1
    assert found["live"]["events"]["state"] in ("live", "no signal")
    assert found["live"]["events"]["dropped"] == 0
    assert all(one["received"] > 10 for one in found["live"].values())
    assert all("drift_ppm" in one for one in found["live"].values())
    assert found["windows_due"] == found["windows_answered"] + found["windows_dropped"] + found["windows_unfinished"]
    assert not [one.name for one in threading.enumerate() if one.name.startswith("live")]


def test_ctrl_c_before_the_first_window_ends_with_a_summary(watch, events_port, monkeypatch):
    taken, take = [], LiveFrames._take

    def interrupted(self, item, at):
        take(self, item, at)
        taken.append(item)
        if len(taken) == 5:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    monkeypatch.setattr(LiveFrames, "_take", interrupted)
    with Camera(port := free_port()):
        sources = "--video", f"live:tcp://127.0.0.1:{port}", "--events", f"live:evt:tcp://127.0.0.1:{events_port}"
        status, (last,), errors = watch(*sources, "--window", "60s")
    assert (status, errors) == (0, "")
    found = last["summary"]
    assert (found["windows_due"], found["answers"]) == (0, 0)
    assert found["live"]["video"]["received"] >= 5
    assert not [one.name for one in threading.enumerate() if one.name.startswith("live")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--video", "live:udp://10.0.0.9:5000"), "which is not allowed; say --live-host 10.0.0.9."),
        (("--video", "live:ftp://127.0.0.1:5000"), "is no address of live video; write live:udp://HOST:PORT"),
        (("--video", "clip.mp4", "--events", "live:tcp://127.0.0.1:7"), "must both be files or both be live"),
        (("--video", "live:tcp://127.0.0.1:7", "--events", "clip.h5"), "must both be files or both be live"),
        (("--video", "live:tcp://127.0.0.1:7", "--server", "ws://127.0.0.1:9"), "A server reads cameras itself"),
        (("--video", "live:tcp://127.0.0.1:7", "--signal-timeout", "0"), "--signal-timeout is 0"),
    ],
)  # fmt: skip
def test_bad_sources_cost_one_sentence(pair, capsys, arguments, sentence):
    server = "--server" in arguments
    models = [] if server else ["--target", str(pair.target), "--drafter", "none"]
    assert main(["watch", *models, "--ask", "What?", *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert sentence in errors


def test_an_event_camera_that_is_not_there_is_one_sentence(watch):
    port = free_port()
    with Camera(port):
        place = f"live:evt:tcp://127.0.0.1:{free_port()}"
        status, shown, errors = watch("--video", f"live:tcp://127.0.0.1:{port}", "--events", place)
    assert (status, shown) == (2, [])
    assert errors.count("\n") == 1
    assert "start what sends the events first" in errors


@pytest.mark.parametrize(
    ("events", "options", "said"),
    [
        ("live:evt:-", ("--format", "evt"), "--format is about a file with events"),
        ("live:evt:-", ("--time-unit", "s"), "--time-unit is about a file with events"),
        ("live:evt:-", ("--clock", "own"), "--clock is about a file with events"),
        ("clip.h5", ("--clock-offset", "0.2"), "--clock-offset is about live events"),
        ("live:rtsp://me:secret@127.0.0.1/a", (), "'live:rtsp://127.0.0.1/a' is no address of live events"),
    ],
)
def test_options_that_do_not_fit_the_source_of_events_are_refused(events, options, said, capsys):
    """What is not used is not dropped in silence, and no password is shown."""
    video = "live:udp://127.0.0.1:5000" if events.startswith("live:") else "clip.mp4"
    command = ["watch", "--video", video, "--events", events, "--ask", "Why?", *options]
    assert main(command) == 2
    assert said in capsys.readouterr().err


def test_a_live_source_is_shown_and_filmed(events_port, tmp_path, capsys):
    out = tmp_path / "film.mp4"
    arguments = ["events", "view", f"live:evt:tcp://127.0.0.1:{events_port}", "--end", "0.5", "--fps", "10"]
    assert main([*arguments, "--out", str(out), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["events"] >= 100
    assert 1 <= sum(1 for _ in iter_frames(out)) <= 5


def test_a_live_source_is_described(events_port, capsys):
    place = f"live:evt:tcp://127.0.0.1:{events_port}"
    assert main(["events", "info", place, "--seconds", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["format"], found["width"]) == (place, "live", 8)
    assert 200 <= found["events"] <= found["live"]["received"]
    assert main(["events", "info", "clip.h5", "--seconds", "1"]) == 2
    assert "about a live source" in capsys.readouterr().err
    assert main(["events", "info", place, "--time-unit", "s"]) == 2
    assert "are about files" in capsys.readouterr().err


def test_a_live_source_is_drawn_where_there_is_no_terminal(events_port, capsys):
    assert main(["events", "view", f"live:evt:tcp://127.0.0.1:{events_port}", "--end", "0.3", "--fps", "10"]) == 0
    assert "0.000 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--speed", "2"], "are about files"),
        (["--start", "1"], "are about files"),
        (["--time-unit", "s"], "are about files"),
        (["--fps", "1000"], "0.1 to 100"),
        (["--out", "film.mp4"], "of so many seconds"),
        (["--out", "folder", "--end", "1"], "of so many seconds"),
        ([], "Nothing listens|refused"),
    ],
)
def test_what_a_live_view_refuses(options, said, capsys):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # so that nobody else listens there
        address = f"live:evt:tcp://127.0.0.1:{held.getsockname()[1]}"
        assert main(["events", "view", address, *options]) == 2
    assert re.search(said, capsys.readouterr().err.replace("\n", " "))
