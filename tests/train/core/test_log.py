"""The log drops what a resumed run does again; growing files are read after an interruption."""

import json
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.core.log import MetricsLog, complete_lines


def filled(log: MetricsLog) -> MetricsLog:
    for step in (1, 2, 3):
        log.add_step(step, 0.125 * step, {"loss": 1 / 3})
        log.add_check(step, 0.5, {"tau": 2.0})
    return log


def test_lines_say_step_seconds_and_figures(tmp_path):
    lines = [json.loads(line) for line in filled(MetricsLog(tmp_path / "log")).path.read_text().splitlines()]
    assert lines[0] == {"step": 1, "seconds": 0.12, "loss": 0.33333}
    assert lines[1] == {"step": 1, "seconds": 0.5, "check": {"tau": 2.0}}


def test_steps_and_checks_are_cut_each_at_its_own(tmp_path):
    log = filled(MetricsLog(tmp_path / "log"))
    log.truncate(2, 1)
    kept = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [(line["step"], "check" in line) for line in kept] == [(1, False), (1, True), (2, False)]


def test_no_log_is_an_empty_one_and_a_damaged_one_is_refused(tmp_path):
    MetricsLog(tmp_path / "none").truncate(0, 0)
    assert (tmp_path / "none").read_text() == ""
    (tmp_path / "log").write_text("[1]\n")
    with pytest.raises(CrossdraftError, match="log is damaged; remove it"):
        MetricsLog(tmp_path / "log").truncate(1, 1)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"a\nb\nc", ["a\n", "b\n"]),
        (b"a\nb\n", ["a\n", "b\n"]),
        (b"a", []),
        (b"", []),
        ("a\né".encode()[:-1], ["a\n"]),  # cut within a letter
    ],
)
def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path, written: bytes, lines: list[str]) -> None:
    (tmp_path / "log").write_bytes(written)
    assert complete_lines(tmp_path / "log") == lines


def test_no_file_holds_no_lines(tmp_path: Path) -> None:
    assert complete_lines(tmp_path / "none") == []
