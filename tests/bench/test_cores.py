"""Who computes where."""

import os

import pytest
import torch

from crossdraft.bench.cores import Cores, choose_cores, parse_cores, pinned
from crossdraft.errors import CrossdraftError


@pytest.mark.parametrize(
    ("text", "cores"), [("0", (0,)), ("2,0", (0, 2)), ("0-2", (0, 1, 2)), ("1,1-2", (1, 2))]
)
def test_core_lists(text, cores):
    assert parse_cores(text, [0, 1, 2]) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0,,1", "2-1"])
def test_what_is_no_core_list(text):
    with pytest.raises(CrossdraftError):
        parse_cores(text, [0, 1, 2])


def test_a_core_that_is_not_there():
    with pytest.raises(CrossdraftError, match="may use"):
        parse_cores("7", [0, 1])


def test_sharing_is_told():
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


def test_pinning_ends_with_its_context():
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    one = min(before)
    with pinned((one,)):
        assert os.sched_getaffinity(0) == {one}
        assert torch.get_num_threads() == 1
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (before, threads)
