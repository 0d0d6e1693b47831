"""Who computes where."""

import os

import pytest

from crossdraft.cli.cores import Cores, choose_cores, parse_cores, spans
from crossdraft.errors import CrossdraftError


@pytest.mark.parametrize(("text", "cores"), [("0", (0,)), ("2,0", (0, 2)), ("0-2", (0, 1, 2)), ("1,1-2", (1, 2))])
def test_core_lists(text, cores):
    assert parse_cores(text, [0, 1, 2]) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0,,1", "2-1"])
def test_what_is_no_core_list(text):
    with pytest.raises(CrossdraftError):
        parse_cores(text, [0, 1, 2])


def test_a_core_that_is_not_there():
    with pytest.raises(CrossdraftError, match="may use"):
        parse_cores("7", [0, 1])


@pytest.mark.parametrize("text", ["0-999999999999999999", "0,5-9999999999", ",".join(["1"] * 9000) + ",9"])
def test_a_range_without_end_is_refused_at_once_and_in_short(text):
    with pytest.raises(CrossdraftError, match="but this process may use only 0-1") as raised:
        parse_cores(text, [0, 1])
    assert len(str(raised.value)) < 150


def test_the_first_absent_core_is_named():
    with pytest.raises(CrossdraftError, match=r"'0-9' names core 2, but this process may use only 0-1, 4\."):
        parse_cores("0-9", [0, 1, 4])


def test_more_digits_than_any_core_has_are_no_list_of_cores():
    with pytest.raises(CrossdraftError, match="is no list of cores") as raised:
        parse_cores("1" * 5000, [0, 1])
    assert len(str(raised.value)) < 150


@pytest.mark.parametrize(
    ("cores", "shown"),
    [
        ((3,), "3"),
        ((0, 1, 2, 5, 7, 8), "0-2, 5, 7-8"),
        (range(192), "0-191"),
        (range(0, 64, 2), "0, 2, 4, 6, 8, 10, 12, 14 … (32 in all)"),
    ],
)
def test_cores_for_people(cores, shown):
    assert spans(cores) == shown


def test_shared_cores_are_reported():
    assert Cores((0,), (0,)).shared
    assert not Cores((0,), (1,)).shared


def test_by_default_each_side_has_a_core_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert choose_cores() == Cores((0,), (1,))
    assert choose_cores(all_target=True) == Cores((0, 1, 2), (3,))
    assert choose_cores(draft="0") == Cores((1,), (0,))
    assert choose_cores(target="0-3") == Cores((0, 1, 2, 3), (0, 1, 2, 3))


def test_on_a_single_core_both_share_it(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert choose_cores() == choose_cores(all_target=True) == Cores((5,), (5,))
