"""A thread is on its cores while it should be, and back where it was afterwards."""

import os

import pytest
import torch

from crossdraft.engine.fast.pinning import pin, pinned


def where() -> tuple[set[int], int]:
    return os.sched_getaffinity(0), torch.get_num_threads()


def test_pinning_ends_with_its_context():
    before = where()
    one = min(before[0])
    with pinned((one,)):
        assert where() == ({one}, 1)
    assert where() == before


def test_pinning_ends_with_an_error_too():
    before = where()
    with pytest.raises(ZeroDivisionError), pinned((min(before[0]),)):
        raise ZeroDivisionError
    assert where() == before


def test_a_pin_without_a_context_is_undone_by_what_it_returns():
    before = where()
    undo = pin((min(before[0]),))
    assert where() == ({min(before[0])}, 1)
    undo()
    assert where() == before


def test_no_cores_leave_everything_as_it_is():
    before = where()
    with pinned(None):
        assert where() == before
    pin(None)()
    assert where() == before
