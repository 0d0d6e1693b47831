"""A thread is on its cores while it should be, and back where it was afterwards."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from crossdraft.engine.fast.pinning import done_on, loading, pin, pinned
from tests.openmp import cores_of_threads, needs_gnu, use_two_threads
from tests.support import until


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


@needs_gnu
@pytest.mark.parametrize("how", ["loading", "done_on"])
def test_helpers_of_work_end_with_it(how: str) -> None:
    """They would serve the thread's next operations on cores that are not its own."""

    def work() -> tuple[int, bool]:
        before, seen = cores_of_threads().keys(), list[int]()

        def measured() -> None:
            use_two_threads()
            seen.append(len(cores_of_threads().keys() - before))

        if how == "loading":
            with loading((min(where()[0]),)):
                measured()
        else:
            done_on(measured, sorted(where()[0]), 2)
        until(lambda: cores_of_threads().keys() <= before)
        return seen[0], cores_of_threads().keys() <= before

    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(work).result() == (1, True)
