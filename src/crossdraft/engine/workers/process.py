"""A worker: a process that holds one object and answers questions put to it, on CPU cores of its own.

It is an ordinary child (`python -m crossdraft.engine.workers`), not a fork of ours, so that it can pin itself to its
cores before torch starts a thread. The object's tensors are not copied: both processes map the same memory.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from torch import Tensor

from crossdraft.engine.workers.objects import SharedObject
from crossdraft.engine.workers.shared import ALIVE, Channel
from crossdraft.errors import CrossdraftError

SILENT_S = 10.0  # so long a worker that was asked something may finish no module, before it counts as hanging
ANSWER_S = 600.0  # so long it may take for one answer, or to begin
LOOK_S = 0.05  # between two looks for its answer
LOOKS = 4  # so many at least find it silent, before it is: whoever was suspended takes nobody else for hanging


class WorkerLost(CrossdraftError):
    """A worker's process ended, or hangs."""


class WorkerProcess:
    """One such process.

    Args:
        shared: the object that it holds: a function `(question, tensors) -> (reply, tensors)`.
        cores: CPU cores that it may use, one torch thread for each.
        silent_s: seconds in which it finishes no call of a module, while an answer of it is due; then it is lost.

    Raises:
        CrossdraftError: the system cannot do that, or the process could not be started.
    """

    def __init__(self, shared: SharedObject, cores: Sequence[int], silent_s: float = SILENT_S) -> None:
        if sys.platform == "win32":
            raise CrossdraftError("Groups of CPU cores share memory in a way that Windows does not offer.")
        self.cores, self.silent_s = tuple(cores), silent_s
        self._answer: tuple[Any, list[Tensor]] | WorkerLost | None = None
        self._asked = self._looked = time.monotonic()
        self._silence = 0.0  # seconds without a sign of life
        ours, theirs = Pipe()
        with theirs:
            try:
                self._child = _started(theirs, self.cores)
            except OSError as error:  # such as too many processes, or no memory for one more
                ours.close()
                raise CrossdraftError(
                    f"{self} could not be started ({error.strerror or error}); end other programs, or name fewer cores."
                ) from error
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
        self._receive(ANSWER_S)  # it has to load PyTorch before it can say anything

    def send(self, question: Any, tensors: Sequence[Tensor] = ()) -> None:
        """Ask; `receive` waits for the reply. One question at a time."""
        self._asked = self._looked = time.monotonic()
        self._silence = 0.0
        try:
            self._channel.send(question, tensors)
        except OSError as error:
            raise self._lost() from error

    def answered(self, wait_s: float = 0.0) -> bool:
        """True if `receive` need not wait: it is answered, or the process lost; waits for that at most so long."""
        return self._look(wait_s, self.silent_s)

    def receive(self) -> tuple[Any, list[Tensor]]:
        """The reply to the question, and its tensors, which are valid until the next question.

        Raises:
            WorkerLost: the process is gone, or makes no progress.
            CrossdraftError: what went wrong there.
        """
        return self._receive(self.silent_s)

    def _receive(self, silent_s: float) -> tuple[Any, list[Tensor]]:
        while not self._look(LOOK_S, silent_s):
            pass
        found = self._answer
        if found is None or isinstance(found, WorkerLost):
            raise found or WorkerLost(f"{self} was asked nothing")
        self._answer = None
        (reply, error), tensors = found
        if error is not None:
            raise CrossdraftError(f"{self} failed: {error}")
        return reply, tensors

    def _look(self, wait_s: float, silent_s: float) -> bool:
        """Take what it has sent, signs of life and its answer; whether that is there, or none will be."""
        signs = False
        try:
            while self._answer is None and self._channel.connection.poll(0.0 if signs else wait_s):
                message, tensors = self._channel.receive()
                signs = True
                if message != ALIVE:
                    self._answer = message, tensors
        except (OSError, EOFError):
            self._answer = self._lost()
        now = time.monotonic()
        self._silence = 0.0 if signs else self._silence + min(now - self._looked, silent_s / LOOKS)
        self._looked = now
        if self._answer is None and self._silence >= silent_s:
            self._answer = WorkerLost(f"{self} made no progress for {silent_s:g} s")
        elif self._answer is None and now - self._asked >= ANSWER_S:
            self._answer = WorkerLost(f"{self} has not answered for {ANSWER_S:g} s")
        return self._answer is not None

    def close(self) -> None:
        """End the process; may be called twice."""
        self._channel.connection.close()  # which it takes for its end
        if isinstance(self._answer, WorkerLost):
            self._child.kill()
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
