"""Drafters' processes as forks of a process that has imported torch and transformers: a fresh import takes seconds.

This works on Linux without CUDA only: a fork cannot use a device that its parent process has opened, and elsewhere the
system's libraries do not survive a fork.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess

import torch

from crossdraft.engine.runner.child import START


class ForkedChild:
    """Forked process at work, with the interface of `subprocess.Popen` that drafters' runners need."""

    def __init__(self, process: BaseProcess) -> None:
        self._process, self.pid = process, process.pid or 0

    def poll(self) -> int | None:
        """Return the exit status; `None` while the process works."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the work, and return the exit status.

        Raises:
            subprocess.TimeoutExpired: the work takes longer than `timeout` seconds.
        """
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


def fork(work: Callable[..., object], *arguments: object) -> ForkedChild:
    """Run work in a forked process: a module's function with arguments that can be pickled.

    Raises:
        OSError, EOFError: no process can be forked.
    """
    process = get_context("forkserver").Process(target=work, args=arguments, daemon=True)
    process.start()
    return ForkedChild(process)


@contextmanager
def forking(modules: Sequence[str]) -> Iterator[None]:
    """Start drafters' processes in this context, and in the calling thread, as forks of one that has these modules.

    Where no process can be forked, they are started afresh. The modules are imported while the caller goes on.
    """
    if sys.platform != "linux" or torch.cuda.is_available() or START.get() is not None:
        yield
        return
    get_context("forkserver").set_forkserver_preload([*modules])
    ensure_running()
    token = START.set(fork)
    try:
        yield
    finally:
        START.reset(token)


def start_method() -> str:
    """Way in which `multiprocessing` is to start a process in this context."""
    return "spawn" if START.get() is None else "forkserver"
