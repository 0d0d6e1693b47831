"""A drafter that is slow, and one that hangs: who makes progress is kept, in a real process."""

import os
import signal
import time
from contextvars import copy_context
from functools import partial

import pytest

from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.drafter import Budget, Draft, Needs
from crossdraft.engine.progress import PROGRESS_BYTES, ProgressClock, mark_on, progress
from crossdraft.engine.request import Request
from crossdraft.engine.runner import process as runner_process
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import DrafterLost
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

TIMEOUT_S, STEPS = 1.0, 15  # a step takes a tenth of the timeout
QUESTION = Request("What is ahead?", max_new_tokens=8)


class Slow:
    """In the child: takes 1.5 times the timeout `during` one of its calls, a step at a time, or never returns."""

    needs = Needs()

    def __init__(self, during: str, *, hangs: bool = False) -> None:
        self.during, self.hangs = during, hangs
        self.work("load")

    def work(self, call: str) -> None:
        while self.hangs and call == self.during:
            pass
        for _ in range(STEPS if call == self.during else 0):
            time.sleep(TIMEOUT_S / 10)
            progress()

    def begin(self, requests):
        self.work("begin")
        return [[] for _ in requests]

    def propose(self, states, budgets):
        self.work("propose")
        return [Draft(DraftTree.chain([7, 8])) for _ in states]

    def commit(self, states, outputs):
        pass

    def fork(self, states):
        return states

    def end(self, states):
        pass


@pytest.fixture
def started(monkeypatch):
    """Starts drafters, and ends them."""
    begun = []

    def start(*args, **settings) -> ProcessDrafter:
        begun.append(ProcessDrafter(partial(Slow, *args, **settings), drafter_timeout_s=TIMEOUT_S))
        return begun[-1]

    monkeypatch.setattr(runner_process, "LOAD_TIMEOUT_S", 4 * TIMEOUT_S)  # some import PyTorch first
    yield start
    for drafter in begun:
        drafter.close()


@pytest.mark.parametrize("during", ["load", "begin", "propose"])
def test_one_that_is_slow_and_makes_progress_is_kept_and_its_draft_is_used(started, monkeypatch, during):
    if during == "load":
        started("nothing")  # the first fork waits until everything is imported
        monkeypatch.setattr(runner_process, "LOAD_TIMEOUT_S", TIMEOUT_S)
    drafter = started(during)
    pid = drafter.pid
    (state,) = drafter.begin([QUESTION])
    (draft,) = drafter.propose([state], [Budget(4)])
    assert draft.tree.tokens == (7, 8)
    assert (drafter.alive, drafter.pid) == (True, pid)


@pytest.mark.parametrize("during", ["begin", "propose"])
@pytest.mark.parametrize("stopped", [False, True], ids=["loops", "stopped"])
def test_one_that_hangs_is_lost_after_the_timeout(started, during, stopped):
    drafter = started(during, hangs=True)
    (state,) = drafter.begin([QUESTION])
    if stopped:
        os.kill(drafter.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(DrafterLost, match="no progress within 1 s"):
        drafter.propose([state], [Budget(4)])
    assert time.monotonic() - began < 3 * TIMEOUT_S


def test_one_that_hangs_while_it_loads_is_one_sentence(started):
    began = time.monotonic()
    with pytest.raises(CrossdraftError, match="could not be loaded: it made no progress for 4 s"):
        started("load", hangs=True)
    assert time.monotonic() - began < 12 * TIMEOUT_S


def marks_of(work) -> int:
    """How often the work marks progress."""

    class Counting(ProgressClock):
        count = 0

        def mark(self) -> None:
            self.count += 1
            super().mark()

    clock = Counting(memoryview(bytearray(PROGRESS_BYTES)))

    def marked() -> None:
        mark_on(clock)
        work()

    copy_context().run(marked)
    assert (clock.get() > 0) == (clock.count > 0)
    return clock.count


def test_a_models_weights_and_layers_are_pieces_of_work(pair, clip):
    loaded = []
    assert marks_of(lambda: loaded.append(load_drafter(str(pair.event)))) >= 20  # a tensor at a time
    (drafter,) = loaded
    layers = drafter.model.text_config.num_hidden_layers
    states = []
    asked = Request("What is ahead?", events=str(clip.events), max_new_tokens=8)
    assert marks_of(lambda: states.extend(drafter.begin([asked]))) >= layers
    assert marks_of(lambda: drafter.propose(states, [Budget(4)])) >= 3 * layers


def test_where_nobody_waits_nothing_is_marked():
    assert marks_of(lambda: None) == 0
    progress()
