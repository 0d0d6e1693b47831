"""Forked processes: what they do, how they end, and where none is made."""

import os
import subprocess
import time
from contextvars import Context

import pytest
import torch

from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.drafter import Budget
from crossdraft.engine.prompt import known_ids
from crossdraft.engine.request import Request
from crossdraft.engine.runner.child import START
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft_lab.bench.forking import fork, forking, start_method

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open") or torch.cuda.is_available(), reason="forks are made on Linux without CUDA"
)


@pytest.fixture(scope="module", autouse=True)
def _forks():
    with forking(["crossdraft.engine.runner.process"]):
        yield


def tokens_of(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_a_fork_that_is_killed_is_over():
    child = fork(time.sleep, 600)
    assert child.poll() is None
    assert child.pid != os.getpid()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    child.kill()
    assert child.wait(30) != 0
    assert child.poll() is not None


def test_with_cuda_there_are_no_forks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def found():
        with forking([]):
            return START.get(), start_method()

    assert Context().run(found) == (None, "spawn")
    assert start_method() == "forkserver"


@pytest.mark.parametrize("dead", [False, True])
def test_a_drafter_drafts_in_a_fork_and_in_a_fresh_process_where_none_can_be_made(monkeypatch, dead):
    made = []

    def started(*given):
        made.append(given)
        if dead:
            raise EOFError("the server died")
        return fork(*given)

    token = START.set(started)
    drafter = ProcessDrafter(NgramDrafter, [max(os.sched_getaffinity(0))])
    try:
        states = drafter.begin([Request("?", prompt_ids=known_ids(tokens_of("abcabc")))])
        (draft,) = drafter.propose(states, [Budget(3)])
        assert draft.tree.tokens == tuple(tokens_of("abc"))
        assert drafter.alive
    finally:
        START.reset(token)
        drafter.close()
    assert len(made) == 1
    assert not drafter.alive
