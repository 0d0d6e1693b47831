"""Starting the process of a `ProcessDrafter`, and the private connection to it."""

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Protocol

from crossdraft.engine.fast.cores import spin_shortly
from crossdraft.engine.runner.__main__ import run
from crossdraft.engine.runner.link import Handled
from crossdraft.errors import CrossdraftError

CALL_TIMEOUT_S = 120.0  # for a child to start and connect, before it loads anything


class Child(Protocol):
    """A child process: the part of `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


START: ContextVar[Callable[..., Child] | None] = ContextVar("starts a drafter's process", default=None)
"""Starts a process that calls a function with arguments, in place of a new Python; OSError or EOFError if it cannot."""


def start_child(cores: Sequence[int] | None) -> tuple[Connection, Child, Handled]:
    """Start a drafter's process and wait until it has connected."""
    key = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="crossdraft-", ignore_cleanup_errors=True) as folder:
        # Windows has no sockets in folders; its pipes have names of their own.
        address = rf"\\.\pipe\{Path(folder).name}" if sys.platform == "win32" else str(Path(folder) / "link")
        handled = Handled(Path(folder), create=True)
        with _listener(address, key) as listener:
            child = _started(address, cores, folder, key)
            watcher = threading.Thread(target=_wake_if_dead, args=(child, address), daemon=True)
            slow = threading.Timer(CALL_TIMEOUT_S, child.kill)
            try:
                watcher.start()
                slow.start()
                return listener.accept(), child, handled
            except KeyboardInterrupt:
                child.kill()
                raise
            except (EOFError, OSError, AuthenticationError) as error:
                child.kill()
                raise CrossdraftError(
                    f"The drafter's process could not be started (exit status {child.poll()}); "
                    "see its message above, or use the inline placement."
                ) from error
            finally:
                slow.cancel()


def _started(address: str, cores: Sequence[int] | None, folder: str, key: bytes) -> Child:
    """Start the process, by `START` if that is set."""
    if (start := START.get()) is not None:
        with suppress(OSError, EOFError):  # then a new Python is started
            return start(run, address, tuple(cores) if cores else None, folder, key)
    environment = dict(os.environ)
    if cores is not None:
        environment["OMP_NUM_THREADS"] = str(len(cores))
    spin_shortly(environment)
    arguments = ["-m", "crossdraft.engine.runner", address, ",".join(map(str, cores or ())), folder]
    try:
        child = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, env=environment)
    except OSError as error:  # such as too many processes, or no memory for one more
        raise CrossdraftError(
            f"The drafter's process could not be started ({error.strerror or error}); end other programs, or use the "
            "inline placement."
        ) from error
    stdin = child.stdin
    if stdin is None:
        raise CrossdraftError("The drafter's process could not be started.")
    with suppress(BrokenPipeError):  # the child has died, which the watcher notices
        stdin.write(key.hex().encode())
        stdin.close()
    return child


def _listener(address: str, key: bytes) -> Listener:
    try:
        return Listener(address, authkey=key)  # a socket or a pipe, by the address
    except OSError as error:  # such as a folder for temporary files with too long a name
        raise CrossdraftError(
            f"The drafter's process cannot be reached at {address} ({error}); set TMPDIR to a folder with a short "
            "name, or use the inline placement."
        ) from error


def _wake_if_dead(child: Child, address: str) -> None:
    """Wake `accept`, which has no timeout, if the child ends before it connects: connect in its place."""
    child.wait()
    with suppress(OSError):  # the child had connected, or the listener is gone: nobody waits
        Client(address).close()
