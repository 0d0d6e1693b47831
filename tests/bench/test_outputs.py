"""JSON goes where it was asked to, and what cannot be written is refused beforehand."""

import json
from pathlib import Path

import pytest

from crossdraft.bench.outputs import check_outputs, write_json
from crossdraft.errors import CrossdraftError


def test_to_a_file_to_stdout_or_nowhere(tmp_path, capsys):
    report = {"τ": 1.5}
    write_json(report, tmp_path / "new" / "a.json")
    assert json.loads((tmp_path / "new" / "a.json").read_text(encoding="utf-8")) == report
    write_json(report, None)
    assert capsys.readouterr().out == ""
    write_json(report, None, stdout=True)
    assert json.loads(capsys.readouterr().out) == report


def test_what_json_cannot_hold_leaves_no_file(tmp_path):
    with pytest.raises(CrossdraftError, match="holds a set"):
        write_json({"a": {1}}, tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_what_can_be_written_passes_and_nothing_is_made(tmp_path):
    check_outputs(None, Path("here.json"), tmp_path / "a.json", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_and_a_place_below_a_file_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path, tmp_path / "file" / "a.json", Path("/proc/a.json")):
        with pytest.raises(CrossdraftError, match="Cannot write"):
            check_outputs(tmp_path / "a.json", wrong, force=True)
    with pytest.raises(CrossdraftError, match="no folder"):
        check_outputs(tmp_path / "new" / "a.json", force=True)


def test_a_file_that_exists_is_overwritten_only_by_force(tmp_path):
    (tmp_path / "a.json").write_text("mine")
    with pytest.raises(CrossdraftError, match="add --force"):
        check_outputs(tmp_path / "a.json", force=False)
    check_outputs(tmp_path / "a.json", force=True)
