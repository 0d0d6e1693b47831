"""The log forgets what a resumed run does again."""

import json
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.train.core.log import cut, note_check, note_step


def filled(log: Path) -> Path:
    for step in (1, 2, 3):
        note_step(log, step, 0.125 * step, {"loss": 1 / 3})
        note_check(log, step, 0.5, {"tau": 2.0})
    return log


def test_lines_say_step_seconds_and_figures(tmp_path):
    lines = [json.loads(line) for line in filled(tmp_path / "log").read_text().splitlines()]
    assert lines[0] == {"step": 1, "seconds": 0.12, "loss": 0.33333}
    assert lines[1] == {"step": 1, "seconds": 0.5, "check": {"tau": 2.0}}


def test_steps_and_checks_are_cut_each_at_its_own(tmp_path):
    log = filled(tmp_path / "log")
    cut(log, 2, 1)
    kept = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["step"], "check" in line) for line in kept] == [(1, False), (1, True), (2, False)]


def test_no_log_is_an_empty_one_and_a_damaged_one_is_told(tmp_path):
    cut(tmp_path / "none", 0, 0)
    assert (tmp_path / "none").read_text() == ""
    (tmp_path / "log").write_text("[1]\n")
    with pytest.raises(CrossdraftError, match="log is damaged; remove it"):
        cut(tmp_path / "log", 1, 1)
