"""A thread's operations run on the drafter's cores while the drafter has nothing to do, and only then."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from crossdraft.engine.fast.elastic import borrowing, disband, poll, poll_between
from crossdraft.engine.fast.pinning import pinned
from tests.openmp import cores_of_threads, needs_gnu, use_two_threads
from tests.support import until

ALLOWED = sorted(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(ALLOWED) < 2, reason="nothing can be borrowed on one core")


class Drafter:
    """Its core is the second one."""

    def __init__(self) -> None:
        self.idle = False

    def spare_cores(self) -> tuple[int, ...]:
        return (ALLOWED[1],) if self.idle else ()


def helpers() -> set[str]:
    """Threads on the drafter's core alone."""
    return {name for name, cores in cores_of_threads().items() if cores == {ALLOWED[1]}}


@needs_two_cores
def test_an_idle_drafters_core_is_borrowed_and_given_back():
    drafter = Drafter()
    with pinned((ALLOWED[0],)), borrowing(drafter.spare_cores):
        assert torch.get_num_threads() == 1
        drafter.idle = True
        assert torch.get_num_threads() == 1  # only between two layers
        poll()
        assert torch.get_num_threads() == 2
        drafter.idle = False
        poll()
        assert torch.get_num_threads() == 1


@needs_two_cores
def test_the_thread_stays_on_its_core_and_its_helper_serves_on_the_other():
    drafter = Drafter()
    drafter.idle = True

    def borrow() -> None:
        with pinned((ALLOWED[0],)), borrowing(drafter.spare_cores):
            assert os.sched_getaffinity(0) == {ALLOWED[0]}
            assert helpers()

    with ThreadPoolExecutor(1) as fresh:  # helpers that this thread already has were started on all cores
        fresh.submit(borrow).result()


@needs_two_cores
@needs_gnu
def test_a_helper_serves_on_the_borrowed_core_again_after_it_was_given_back():
    """Several own threads run on without the helper, which ends it: the next one must not start on their cores."""
    drafter = Drafter()

    def borrow() -> list[int]:
        before, found = helpers(), list[int]()
        with pinned((ALLOWED[0],)):
            torch.set_num_threads(2)
            with borrowing(drafter.spare_cores):
                for idle in (True, False, True):
                    drafter.idle = idle
                    poll()
                    torch.zeros(3 << 15).add_(1)
                    until(lambda idle=idle: idle or helpers() <= before)
                    found.append(len(helpers() - before))
        return found

    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(borrow).result() == [1, 0, 1]


@needs_two_cores
@needs_gnu
def test_a_threads_helpers_end_and_start_again():
    def work() -> list[int]:
        before, found = cores_of_threads().keys(), list[int]()
        for _ in range(2):
            use_two_threads()
            found.append(len(cores_of_threads().keys() - before))
            assert disband()
            until(lambda: cores_of_threads().keys() <= before)
            found.append(len(cores_of_threads().keys() - before))
        return found

    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(work).result() == [1, 0, 1, 0]


FORK = """if True:
    import os, torch
    {before}
    torch.set_num_threads(2)
    torch.zeros(2 << 15).add_(1)
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    from crossdraft.engine.fast.elastic import disband
    from crossdraft.engine.fast.pinning import loading
    with loading((0,)):
        torch.zeros(2 << 15).add_(1)
    os._exit(7 if not disband() else 1)
"""


@needs_gnu
@pytest.mark.parametrize("before", ["", "import crossdraft.engine.fast.elastic"])
def test_a_fork_does_not_wait_for_helpers_that_it_does_not_have(before):
    """Nor while it loads a model: with one thread."""
    code = FORK.format(before=before)
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, timeout=60).returncode == 7


@needs_two_cores
def test_what_is_borrowed_is_given_back_at_the_end():
    drafter = Drafter()
    drafter.idle = True
    with pinned((ALLOWED[0],)):
        with borrowing(drafter.spare_cores):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
        poll()  # nobody lends any more
        assert torch.get_num_threads() == 1


@needs_two_cores
def test_cores_that_the_thread_may_use_anyway_are_not_borrowed():
    drafter = Drafter()
    drafter.idle = True
    with pinned(ALLOWED[:2]):
        threads = torch.get_num_threads()
        with borrowing(drafter.spare_cores):
            assert torch.get_num_threads() == threads


@needs_two_cores
def test_another_thread_borrows_nothing():
    drafter = Drafter()
    drafter.idle = True
    seen: list[int] = []

    def work() -> None:
        with pinned((ALLOWED[0],)):
            poll()
            seen.append(torch.get_num_threads())

    with pinned((ALLOWED[0],)), borrowing(drafter.spare_cores):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [1]


@needs_two_cores
def test_a_model_looks_before_each_of_its_layers():
    drafter = Drafter()
    threads: list[int] = []

    class Layer(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            threads.append(torch.get_num_threads())
            drafter.idle = len(threads) == 1
            return rows

    model = nn.Module()
    model.layers = nn.ModuleList(Layer() for _ in range(3))
    poll_between(model)
    with pinned((ALLOWED[0],)), borrowing(drafter.spare_cores):
        for layer in model.layers:
            layer(torch.zeros(1))
    assert threads == [1, 2, 1]


def test_a_model_looks_as_long_as_somebody_holds_its_hooks(monkeypatch):
    """And once before each layer, however many there are."""
    polled: list[int] = []
    monkeypatch.setattr("crossdraft.engine.fast.elastic.poll", lambda *_: polled.append(1))
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Identity() for _ in range(3))

    def polls() -> int:
        polled.clear()
        for layer in model.layers:
            layer(torch.zeros(1))
        return len(polled)

    poll_between(model)
    first = poll_between(model, hold=True)
    second = poll_between(model, hold=True)
    assert polls() == 3
    for hook in first:
        hook.release()
    assert polls() == 3
    for hook in second:
        hook.release()
    assert polls() == 0
    assert not any(layer._forward_pre_hooks for layer in model.layers)
