"""Progress where there is no terminal: lines, and none of what is over soon; on a terminal a bar without a trace."""

import io
import sys
import time
from types import SimpleNamespace

import pytest

from crossdraft.cli import bars, reporting
from crossdraft.cli.reporting import progress, saying, track, waiting
from crossdraft_lab.outputs import progress_bar


@pytest.fixture(autouse=True)
def _usual(monkeypatch):
    monkeypatch.setattr(bars, "FIRST_S", 1.0)


@pytest.fixture
def clock(monkeypatch):
    """So many seconds pass between two looks."""

    def set_to(step: float) -> None:
        now = [0.0]

        def monotonic() -> float:
            now[0] += step
            return now[0]

        monkeypatch.setattr(bars, "time", SimpleNamespace(monotonic=monotonic))

    return set_to


def lines(capsys) -> list[str]:
    out, said = capsys.readouterr()
    assert out == ""
    return said.splitlines()


def test_lines_say_what_is_done_and_how_far_it_is_ever_more_seldom(capsys, clock):
    clock(1)
    with progress("measuring", 200) as tick:
        for _ in range(200):
            tick("event")
    at = [1, 6, 16, 36, 66, 96, 126, 156, 186]
    assert lines(capsys) == [f"measuring event: {done} of 200" for done in at]


def test_every_kind_of_progress_has_lines(capsys, clock):
    clock(10)
    assert list(track("abcd", "reading")) == list("abcd")
    assert lines(capsys) == ["reading: 1", "reading: 2", "reading: 3"]
    with saying("comparing") as say:
        say("the target alone, run 1 of 3")
    assert lines(capsys) == ["comparing: the target alone, run 1 of 3"]
    with progress_bar() as bar:
        task, other = bar.add_task("eagle", total=4), bar.add_task("of another rank", total=4, visible=False)
        bar.update(task, completed=2, description="eagle loss 0.125")
        bar.advance(other)
        bar.advance(task, 2)
    assert lines(capsys) == ["eagle loss 0.125: 2 of 4", "eagle loss 0.125: 4 of 4"]


def test_what_is_over_soon_writes_none(capsys):
    assert list(track(range(1000), "reading", 1000)) == list(range(1000))
    with waiting("loading"), saying("comparing") as say:
        say("one")
    assert capsys.readouterr() == ("", "")


def test_waiting_for_one_thing_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(bars, "FIRST_S", 0.05)
    monkeypatch.setattr(reporting, "FIRST_S", 0.05)
    said, until = "", time.monotonic() + 60
    with waiting("loading the models"):
        while not said and time.monotonic() < until:
            time.sleep(0.01)
            said = capsys.readouterr().err
        time.sleep(0.1)
    assert [*said.splitlines(), *lines(capsys)] == ["loading the models"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_there_is_a_bar_and_no_line(monkeypatch, clock):
    clock(10)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with saying("comparing") as say:
        say("run 1 of 3")
    assert "comparing: run 1 of 3" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K")  # erased


def test_a_reader_that_went_away_ends_nothing(monkeypatch, clock):
    clock(10)

    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    with progress("measuring", 3) as tick:
        tick("event")
