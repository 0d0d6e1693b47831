"""The file of runs: appended line by line, read again after a cut, and never mixed."""

import json
from dataclasses import dataclass

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.runs import RUNS, RunLine, RunsFile, plain, read_lines, typed


@dataclass(frozen=True)
class Counted:
    names: tuple[str, ...] = ("a", "b")
    pairs: int = 2


def append(file: RunsFile, key: str) -> None:
    file.append(RunLine("counting", key, file.config, (1, 2), {"cpu": "x"}, 0.5, {"found": key}))


def test_lines_are_read_as_they_were_written(tmp_path):
    file = RunsFile(tmp_path, "counting", Counted())
    append(file, "one")
    append(file, "two")
    again = RunsFile(tmp_path, "counting", Counted())
    assert again.lines == file.lines
    assert [line.key for line in again.ordered(["two", "three", "one"])] == ["two", "one"]
    assert again.done == {"one", "two"}


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_last_line_that_was_cut_off_is_dropped_and_written_over(tmp_path, cut):
    file = RunsFile(tmp_path, "counting", Counted())
    append(file, "one")
    append(file, "two")
    whole = file.path.read_bytes()
    first = whole.index(b"\n") + 1
    file.path.write_bytes(whole[: first + cut])
    again = RunsFile(tmp_path, "counting", Counted())
    assert again.done == {"one"}
    append(again, "two")
    assert file.path.read_bytes() == whole


def test_a_complete_line_without_its_end_counts_as_cut_off(tmp_path):
    file = RunsFile(tmp_path, "counting", Counted())
    append(file, "one")
    file.path.write_bytes(file.path.read_bytes().rstrip(b"\n"))
    assert RunsFile(tmp_path, "counting", Counted()).done == set()


def test_another_configuration_is_refused_in_one_sentence(tmp_path):
    append(RunsFile(tmp_path, "counting", Counted()), "one")
    with pytest.raises(CrossdraftError, match=r"another configuration \(pairs is 2, now 3\).*name another folder"):
        RunsFile(tmp_path, "counting", Counted(pairs=3))


def test_runs_of_another_experiment_are_refused(tmp_path):
    append(RunsFile(tmp_path, "counting", Counted()), "one")
    with pytest.raises(CrossdraftError, match="experiment counting, not of other"):
        RunsFile(tmp_path, "other", Counted())


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"key": "one"}', b"\xff"])
def test_a_damaged_line_before_the_last_is_named(tmp_path, line):
    (tmp_path / RUNS).write_bytes(line + b"\n")
    with pytest.raises(CrossdraftError, match="Line 1 of"):
        read_lines(tmp_path / RUNS)


def test_a_time_that_is_no_number_is_never_written(tmp_path):
    file = RunsFile(tmp_path, "counting", Counted())
    with pytest.raises(ValueError, match="JSON"):
        file.append(RunLine("counting", "one", file.config, (), {}, 0.0, {"time": float("nan")}))
    assert not file.path.exists()


def test_a_configuration_survives_json():
    assert typed(Counted, json.loads(json.dumps(plain(Counted())))) == Counted()
    with pytest.raises(CrossdraftError, match="another version"):
        typed(Counted, {"pairs": 2})
