"""Event frames in a terminal."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from rich.console import Console

from crossdraft.cli import event_view
from crossdraft.cli.event_view import PRINTED, picture, show
from crossdraft.cli.main import main
from crossdraft.events import Events, write_events

TERM = {"TERM": "xterm-256color"}
RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def terminal(width: int = 20, height: int = 10, **more: object) -> Console:
    more = {"force_terminal": True, "color_system": "truecolor", "no_color": False} | more
    return Console(file=io.StringIO(), width=width, height=height, _environ=TERM, **more)


def drawn(frame: np.ndarray, console: Console) -> list[str]:
    console.print(picture(frame, 0.25, console))
    return console.file.getvalue().splitlines()


def cells(line: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The colours of the halves of each character of a line."""
    found = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m(▀+)", line)
    return [(tuple(map(int, one[:3])), tuple(map(int, one[3:6]))) for one in found for _ in one[6]]


def test_a_small_frame_is_drawn_pixel_by_pixel():
    frame = np.full((4, 3, 3), 255, np.uint8)
    frame[0, 0], frame[1, 0], frame[3, 2] = RED, BLUE, RED
    *rows, caption = drawn(frame, terminal())
    assert [cells(row) for row in rows] == [[(RED, BLUE), (WHITE, WHITE), (WHITE, WHITE)],
                                            [(WHITE, WHITE), (WHITE, WHITE), (WHITE, RED)]]  # fmt: skip
    assert caption == "0.250 s"


@pytest.mark.parametrize(("height", "width"), [(480, 640), (720, 1280), (1000, 10), (10, 1000), (1, 1)])
def test_every_frame_fits(height, width):
    frame = np.full((height, width, 3), 255, np.uint8)
    frame[height // 2, width // 2] = RED
    *rows, _ = drawn(frame, terminal())
    assert len(rows) <= 8
    found = [cells(row) for row in rows]
    assert {len(row) for row in found} == {len(found[0])}
    assert len(found[0]) <= 20
    assert RED in [half for row in found for cell in row for half in cell]  # however small its share


@pytest.mark.parametrize("console", [{"no_color": True}, {"color_system": None}])
def test_without_colour_there_are_shades(console):
    frame = np.full((4, 2, 3), 255, np.uint8)
    frame[:2, 0], frame[2, 1] = RED, BLUE
    assert drawn(frame, terminal(**console)) == ["█ ", " ▒", "0.250 s"]


class Clock:
    """Time that passes when somebody sleeps, or draws."""

    def __init__(self, draws_s: float = 0.0) -> None:
        self.now, self.slept, self.draws_s = 5.0, 0.0, draws_s

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.draws_s
        self.slept += seconds


def played(monkeypatch, clock: Clock, arrivals_s: list[float], fps: float = 10, speed: float = 1) -> list[str]:
    """The times of the frames that are drawn, of those that arrive so many seconds after each other."""
    monkeypatch.setattr(event_view, "time", clock)
    console, times = terminal(), []
    monkeypatch.setattr(
        event_view,
        "picture",
        lambda frame, seconds, _: times.append(f"{seconds:.2f}") or picture(frame, seconds, console),
    )

    def frames():
        for seconds in arrivals_s:
            clock.now += seconds
            yield np.full((4, 4, 3), 255, np.uint8)

    show(frames(), fps, speed, console)
    return times


def test_frames_are_played_in_their_time(monkeypatch):
    clock = Clock()
    assert played(monkeypatch, clock, [0.0] * 5) == ["0.00", "0.10", "0.20", "0.30", "0.40"]
    assert clock.slept == pytest.approx(0.4)
    assert played(monkeypatch, Clock(), [0.0] * 3, speed=0.1) == ["0.00", "0.01", "0.02"]


def test_late_frames_are_left_out_but_not_all(monkeypatch):
    assert played(monkeypatch, Clock(draws_s=0.24), [0.0] * 11) == ["0.00", "0.20", "0.40", "0.70", "0.90"]
    # A source that has stopped for ten seconds of ours, and none of its own, is shown all the same.
    late = played(monkeypatch, Clock(), [0.0, 10.0, *[0.1] * 5])
    assert late == ["0.00", *(f"{number / 10:.2f}" for number in range(1, 7))]


def test_ctrl_c_ends_it_with_the_cursor_back(monkeypatch):
    monkeypatch.setattr(event_view, "time", Clock())
    console = terminal()

    def frames():
        yield np.full((4, 4, 3), 255, np.uint8)
        raise KeyboardInterrupt

    show(frames(), 25, 1, console)
    shown = console.file.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.endswith(("\n", "\x1b[?25h"))


@pytest.mark.slow
def test_ctrl_c_ends_the_command_in_a_terminal(tmp_path):
    times = np.arange(0, 10_000_000, 1000)
    pixels = np.zeros(len(times), int)
    write_events(tmp_path / "a.h5", Events.checked(pixels, pixels, times, pixels, 64, 48))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "crossdraft", "events", "view", str(tmp_path / "a.h5")]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **TERM}) as process:
        os.close(theirs)
        shown = b""
        while len(re.findall(rb"\d\.\d{3} s", shown)) < 2:  # frames
            shown += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # the end of a terminal
            while read := os.read(ours, 1 << 16):
                shown += read
        assert process.wait(60) == 0
    os.close(ours)
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert b"Traceback" not in shown


def test_elsewhere_a_few_frames_are_printed(tmp_path, monkeypatch, capsys):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):  # by which rich takes a file for a terminal
        monkeypatch.delenv(name, raising=False)
    count = 4000
    times = np.linspace(0, 400_000, count).astype(int)
    write_events(
        tmp_path / "a.h5", Events.checked(np.arange(count) % 64, np.arange(count) % 48, times, [1] * count, 64, 48)
    )
    assert main(["events", "view", str(tmp_path / "a.h5"), "--fps", "50", "--speed", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if line.endswith(" s")] == ["0.000 s", "0.010 s", "0.020 s"][:PRINTED]
    assert "▒" in shown
    assert main(["events", "info", str(tmp_path / "a.h5"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert sum(facts["steps"]) == count
    assert len(facts["silences"]) == 3
