"""Lists of names, balanced orders, output files, tables."""

import json
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest

from crossdraft.cli.outputs import check_outputs
from crossdraft.comparisons import orders, williams
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.common import check_names, counts, listed, numbers
from crossdraft_lab.outputs import write_json


@pytest.mark.parametrize(
    ("text", "names"), [(None, ()), ("", ()), ("hf", ("hf",)), ("hf, event", ("hf", "event")), ("hf,", ("hf", ""))]
)
def test_lists(text, names):
    assert listed(text) == names


def test_known_names_pass():
    check_names("method", ("hf", "event"), ("target", "hf", "event"))


def test_an_unknown_name_is_reported_with_the_nearest_known_one():
    with pytest.raises(CrossdraftError) as raised:
        check_names("method", ("hf", "evnt"), ("target", "hf", "event"))
    assert str(raised.value) == "Unknown method 'evnt' (did you mean 'event'?); choose among target, hf, event."


def test_a_name_that_is_near_to_none_gets_no_suggestion():
    with pytest.raises(CrossdraftError, match=r"^Unknown method 'xyz'; choose among target, hf\.$"):
        check_names("method", ("xyz",), ("target", "hf"))


def test_numbers():
    assert numbers("--temperatures", "0,0.7") == (0, 0.7)
    assert numbers("--temperatures", "") == ()


@pytest.mark.parametrize("text", ["hot", "0,", "0;1"])
def test_what_is_no_list_of_numbers(text):
    with pytest.raises(CrossdraftError, match=f"--temperatures is '{text}', no list of numbers"):
        numbers("--temperatures", text)


@pytest.mark.parametrize("text", ["", "2.5", "nan", "inf", "2,", "a"])
def test_what_is_no_list_of_counts(text):
    assert counts("--frames", " 2,8") == (2, 8)
    with pytest.raises(CrossdraftError, match=f"--frames is '{text}', no list of whole numbers; write it as 1,4,16"):
        counts("--frames", text)
    with pytest.raises(CrossdraftError, match="--frames is 0; it must be at least 1"):
        counts("--frames", "2,0")


def test_small_designs_by_hand():
    assert williams(1) == [[0], [0]]
    assert williams(2) == [[0, 1], [1, 0]]
    assert williams(3) == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]]


@pytest.mark.parametrize("count", range(2, 9))
def test_positions_and_predecessors_are_balanced(count):
    rows = williams(count)
    times = 1 if count % 2 == 0 else 2
    assert all(sorted(row) == list(range(count)) for row in rows)
    positions = Counter((position, one) for row in rows for position, one in enumerate(row))
    followers = Counter(pair for row in rows for pair in pairwise(row))
    assert set(positions.values()) == set(followers.values()) == {times}
    assert len(followers) == count * (count - 1)


def test_blocks_stay_balanced_though_their_rows_are_shuffled():
    turns = list(islice(orders("abc"), 12))
    assert turns != [["abc"[i] for i in row] for row in williams(3) * 2]
    assert turns == list(islice(orders("abc"), 12))
    followers = Counter(pair for order in turns for pair in pairwise(order))
    assert set(followers.values()) == {4}
    assert len(followers) == 6


def test_parts_of_a_measurement_go_on_behind_one_another():
    """Each by itself: together they have the orders that one whole measurement has."""
    whole = list(islice(orders("abcde"), 24))
    parts = [order for first in (0, 8, 16) for order in islice(orders("abcde", after=first), 8)]
    assert parts == whole
    assert parts[:8] != parts[8:16]


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


def test_a_folder_and_a_path_below_a_file_are_refused(tmp_path):
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
