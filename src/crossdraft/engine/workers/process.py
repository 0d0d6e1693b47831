"""A worker: a process that holds one object and answers questions put to it, on CPU cores of its own.

It is an ordinary child (`python -m crossdraft.engine.workers`), not a fork of ours, so that it can pin itself to its
cores before torch starts a thread. The object's tensors are not copied: both processes map the same memory.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from torch import Tensor

from crossdraft.engine.workers.objects import SharedObject
from crossdraft.engine.workers.shared import Channel
from crossdraft.errors import CrossdraftError

SILENT_S = 600.0  # so long a worker may take for one answer before it counts as hanging


class WorkerLost(CrossdraftError):
    """A worker's process ended, or hangs."""


class WorkerProcess:
    """One such process.

    Args:
        shared: the object that it holds: a function `(question, tensors) -> (reply, tensors)`.
        cores: CPU cores that it may use, one torch thread for each.

    Raises:
        CrossdraftError: the system cannot do that, or the process could not be started.
    """

    def __init__(self, shared: SharedObject, cores: Sequence[int]) -> None:
        if sys.platform == "win32":
            raise CrossdraftError("Groups of CPU cores share memory in a way that Windows does not offer.")
        self.cores = tuple(cores)
        ours, theirs = Pipe()
        with theirs:
            self._child = _started(theirs, self.cores)
        self._channel = Channel(ours)
        with suppress(OSError):  # it is dead already: `receive` says so
            self._channel.send((shared.pickled, shared.slots, shared.memory.nbytes))
            shared.memory.send(ours)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def ready(self) -> None:
        """Wait until it holds its object.

        Raises:
            CrossdraftError: it cannot.
        """
        self.receive()

    def send(self, question: Any, tensors: Sequence[Tensor] = ()) -> None:
        """Ask; `receive` waits for the reply. One question at a time."""
        try:
            self._channel.send(question, tensors)
        except OSError as error:
            raise self._lost() from error

    def answered(self) -> bool:
        """Whether `receive` need not wait."""
        return self._channel.connection.closed or self._channel.connection.poll()

    def receive(self, silent_s: float = SILENT_S) -> tuple[Any, list[Tensor]]:
        """The reply to the question, and its tensors, which are valid until the next question.

        Raises:
            WorkerLost: the process is gone, or silent for so long.
            CrossdraftError: what went wrong there.
        """
        try:
            if not self._channel.connection.poll(silent_s):
                raise WorkerLost(f"{self} is silent since {silent_s:g} s")
            (reply, error), tensors = self._channel.receive()
        except (OSError, EOFError) as error:
            raise self._lost() from error
        if error is not None:
            raise CrossdraftError(f"{self} failed: {error}")
        return reply, tensors

    def close(self) -> None:
        """End the process; may be called twice."""
        self._channel.connection.close()  # which it takes for its end
        try:
            self._child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _lost(self) -> WorkerLost:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1.0)
        return WorkerLost(f"{self} ended (exit status {self._child.poll()})")

    def __str__(self) -> str:
        return f"the process on CPU core {', '.join(map(str, self.cores))}"


def _started(connection: Connection, cores: Sequence[int]) -> "subprocess.Popen[bytes]":
    handle = connection.fileno()
    arguments = ["-m", "crossdraft.engine.workers", str(handle), ",".join(map(str, cores))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores))}
    return subprocess.Popen([sys.executable, *arguments], pass_fds=[handle], stdin=subprocess.DEVNULL, env=environment)
