"""Progress where there is no terminal: lines, and none of what is over soon."""

from types import SimpleNamespace

import pytest

from crossdraft.cli import reporting
from crossdraft.cli.reporting import progress, track


@pytest.fixture
def clock(monkeypatch):
    """Ten seconds pass between two looks."""
    seconds = iter(range(0, 1000, 10))
    monkeypatch.setattr(reporting, "time", SimpleNamespace(monotonic=lambda: next(seconds)))


@pytest.mark.usefixtures("clock")
def test_a_line_now_and_then_says_how_far_it_is(capsys):
    with progress("drafters", 7) as tick:
        for _ in range(7):
            tick("event")
    assert capsys.readouterr().err.splitlines() == ["drafters: 3 of 7", "drafters: 6 of 7"]
    assert list(track("abcde", "reading")) == list("abcde")
    assert capsys.readouterr().err.splitlines() == ["reading: 3"]


def test_what_is_over_soon_writes_none(capsys):
    assert list(track(range(1000), "reading", 1000)) == list(range(1000))
    assert capsys.readouterr() == ("", "")
