"""Forked processes: what they do, how they end, and where none can be made."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from pathlib import Path

import pytest
import torch

from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.drafter import Budget
from crossdraft.engine.prompt import known_ids
from crossdraft.engine.request import Request
from crossdraft.engine.runner.forks import MAIN, ForkServer, fork_server, forking
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


def test_a_fork_that_nobody_waits_for_any_more_is_ended(server: ForkServer):
    child = server.fork(time.sleep, 600)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            child.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    child.wait(30)


def test_what_cannot_be_pickled_is_refused_before_a_fork_is_made():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises((pickle.PicklingError, AttributeError)):
            ForkServer(ours).fork(lambda: 1)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def servers_own(modules: list[str], ask: Callable[[ForkServer], None]) -> None:
    """Ask a server of its own, whatever server this context has."""

    def asked() -> None:
        with forking(modules):
            server = fork_server()
            assert server is not None
            ask(server)

    Context().run(asked)


def test_a_server_that_dies_while_it_imports_makes_no_forks():
    def ask(server: ForkServer) -> None:
        for _ in range(2):  # one that waits for it, and one that finds it dead
            with pytest.raises(CrossdraftError, match="could not be forked"):
                server.fork(twice, 1)

    servers_own(["no_such_module"], ask)


def test_what_modules_print_is_printed_once(capfd, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def ask(server: ForkServer) -> None:
        for child in (server.fork(twice, 1), server.fork(twice, 2)):
            child.result()
            child.wait(30)

    servers_own(["this"], ask)
    assert capfd.readouterr().out.count("Beautiful is better than ugly.") == 1


def test_an_interrupt_does_not_end_the_server_while_it_imports_torch(tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(7)\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run([sys.executable, "-c", MAIN, "0"], env=os.environ | {"PYTHONPATH": path}, check=False)
    assert ended.returncode == 7


def test_with_cuda_there_are_no_forks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def server_there() -> ForkServer | None:
        with forking([]):
            return fork_server()

    assert Context().run(server_there) is None


def test_a_drafter_in_a_fork_drafts(server: ForkServer):
    drafter = ProcessDrafter(NgramDrafter, [max(os.sched_getaffinity(0))])
    try:
        states = drafter.begin([Request("?", prompt_ids=known_ids(tokens_of("abcabc")))])
        (draft,) = drafter.propose(states, [Budget(3)])
        assert draft.tree.tokens == tuple(tokens_of("abc"))
        assert Path(f"/proc/{drafter.pid}").exists()
    finally:
        drafter.close()
    with suppress(FileNotFoundError):  # it ends, and leaves nothing to be waited for
        while Path(f"/proc/{drafter.pid}").exists():
            time.sleep(0.01)
