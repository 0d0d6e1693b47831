"""Forked processes: what they do, how they end, and where none can be made."""

import os
import subprocess
import time
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path

import pytest
import torch

from crossdraft.drafters.ngram import NgramDrafter
from crossdraft.engine.drafter import Budget
from crossdraft.engine.request import Request
from crossdraft.engine.runner.forks import ForkServer, fork_server, forking
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.errors import CrossdraftError

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open") or torch.cuda.is_available(), reason="forks are made on Linux without CUDA"
)


@pytest.fixture(scope="module")
def server():
    with forking(["crossdraft.engine.runner.process"]):
        found = fork_server()
        assert found is not None
        yield found


def twice(number: int) -> int:
    return 2 * number


def twice_in_a_fork(number: int) -> int:
    inner = fork_server()
    assert inner is not None
    return inner.fork(twice, number).result()


def tokens_of(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def refuse() -> None:
    raise CrossdraftError("No.")


def test_a_fork_returns_what_its_work_returns(server: ForkServer):
    child = server.fork(twice, 21)
    assert child.result() == 42
    assert child.pid != os.getpid()


def test_a_fork_has_forks_made_of_the_same_process(server: ForkServer):
    assert server.fork(twice_in_a_fork, 3).result() == 6


def test_an_error_is_raised_where_the_result_is_asked_for(server: ForkServer):
    with pytest.raises(CrossdraftError, match="No"):
        server.fork(refuse).result()


def test_a_fork_that_is_killed_is_over(server: ForkServer):
    child = server.fork(time.sleep, 600)
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    child.kill()
    child.wait(30)
    with pytest.raises(EOFError):
        child.result()


def test_with_cuda_there_are_no_forks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def server_there() -> ForkServer | None:
        with forking([]):
            return fork_server()

    assert Context().run(server_there) is None


def test_a_drafter_in_a_fork_drafts(server: ForkServer):
    drafter = ProcessDrafter(partial(NgramDrafter, tokens_of), [max(os.sched_getaffinity(0))])
    try:
        states = drafter.begin([Request("abcabc")])
        (draft,) = drafter.propose(states, [Budget(3)])
        assert draft.tree.tokens == tuple(tokens_of("abc"))
        assert Path(f"/proc/{drafter.pid}").exists()
    finally:
        drafter.close()
    with suppress(FileNotFoundError):  # it ends, and leaves nothing to be waited for
        while Path(f"/proc/{drafter.pid}").exists():
            time.sleep(0.01)
