"""Forked processes: forks of one that has imported torch and transformers, which takes a fresh one seconds.

For those who start many drafters, such as `crossdraft bench`. On Linux without CUDA only: a fork cannot use a device
that the process it was made of has opened, and elsewhere the system's libraries do not bear a fork.
"""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch

from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

FORK_TIMEOUT_S = 120.0  # the first one is made when everything is imported
MAIN = (  # Ctrl-C is the parent's to handle, also while this imports torch
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from crossdraft.engine.runner.forks import main; main()"
)


class ForkServer:
    """Asks the process that is forked; `link` leads to it. Forks may ask it as well."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def fork(self, work: Callable[..., object], *arguments: Any) -> "ForkedChild":
        """Have a fork do the work: a module's function with arguments that can be pickled.

        Raises:
            CrossdraftError: none can be made any more.
        """
        packed = pickle.dumps((work, arguments))
        ours, theirs = Pipe()
        try:
            with theirs:
                socket.send_fds(self._link, [b"."], [theirs.fileno(), self._link.fileno()])
            ours.send_bytes(packed)
            pid = ours.recv() if ours.poll(FORK_TIMEOUT_S) else None
        except (OSError, EOFError):  # the server is gone
            pid = None
        if pid is None:
            raise CrossdraftError("A process could not be forked; see its message above.")
        return ForkedChild(pid, ours)


class ForkedChild:
    """A fork at work, with what `subprocess.Popen` offers of a process; no exit status is known.

    Args:
        pid: its process id.
        link: to it; what the work returns comes last.
    """

    def __init__(self, pid: int, link: Connection) -> None:
        self.pid = pid
        self._link = link

    def result(self) -> Any:
        """Wait for the work's result, or raise its error. If the wait is interrupted, the work ends too.

        Raises:
            EOFError: the process died.
        """
        try:
            value, error = self._link.recv()
        except KeyboardInterrupt:
            self.kill()
            raise
        if error is not None:
            raise error
        return value

    def poll(self) -> int | None:
        """None while it works."""
        return -1 if self._link.poll() else None

    def wait(self, timeout: float | None = None) -> int:
        """Until the work is over.

        Raises:
            subprocess.TimeoutExpired: it takes longer than so many seconds.
        """
        if not self._link.poll(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return -1

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


_server: ContextVar[ForkServer | None] = ContextVar("fork server", default=None)


def fork_server() -> ForkServer | None:
    """Return the fork server of this context; `None` = processes are started afresh."""
    return _server.get()


@contextmanager
def forking(modules: Sequence[str]) -> Iterator[None]:
    """Drafters' processes that the calling thread starts in this context are forks of one with these modules.

    Where no fork can be made, processes are started afresh. The modules are imported while the caller goes on.
    """
    if sys.platform != "linux" or torch.cuda.is_available() or fork_server() is not None:
        yield
        return
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, "-c", MAIN, str(theirs.fileno()), *modules]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        token = _server.set(ForkServer(ours))
        try:
            yield
        finally:
            _server.reset(token)
            process.kill()  # forks go on
            process.wait()


def main() -> None:
    """Import the modules named, then make a fork for everyone who asks, until nobody can any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whose end nobody waits for
    for module in sys.argv[2:]:
        import_module(module)
    sys.stdout.flush()  # or each fork prints it again
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        while True:
            asked, (*handles,), _, _ = socket.recv_fds(requests, 1, 2)
            if not asked:
                return
            if os.fork() == 0:
                requests.close()
                _work(*handles)
            for handle in handles:
                os.close(handle)


def _work(handle: int, server: int) -> None:
    """In the fork: do what is asked for, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _server.set(ForkServer(socket.socket(fileno=server)))
    link = Connection(handle)
    try:
        packed = link.recv_bytes()
        link.send(os.getpid())
        work, arguments = pickle.loads(packed)  # noqa: S301 - from our own parent
        link.send((work(*arguments), None))
    except Exception as error:
        if not isinstance(error, CrossdraftError | OSError):
            log.exception("A forked process failed.")
        with suppress(Exception):  # whoever asked may be gone, or the error not to be pickled
            link.send((None, error))
    finally:
        sys.stdout.flush()
        os._exit(0)
