"""A drafter in a process of its own, on its own cores or its own GPU.

The worker is an ordinary child (`python -m crossdraft.engine.worker`), not a fork of ours: it can pin itself to its
cores before torch starts a thread, and a script needs no `__main__` guard. Both sides speak over a private socket;
any message that arrives while the worker drafts for the prefill is its stop signal.
"""

import os
import pickle
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from crossdraft.engine.drafter import Budget, Committed, Draft, Drafter, Needs
from crossdraft.engine.placement import DrafterLost, OnToken
from crossdraft.engine.request import Request
from crossdraft.engine.timeline import Span
from crossdraft.engine.wire import unpack_draft
from crossdraft.errors import CrossdraftError

LOAD_TIMEOUT_S = 120.0
Reply = tuple[str, tuple[int, list[Span], Any]]  # kind, (serial, the worker's spans, body)


class Process:
    """A placement that runs `factory()` in a child process.

    Args:
        factory: makes the drafter, there; must be picklable (a module's function or a `functools.partial` of one).
        cores: CPU cores the child may use; `None` = those of this process.
        patience_s: how long a reply may take before the drafter counts as hanging.

    Raises:
        CrossdraftError: the child could not load the drafter.
    """

    needs = Needs()

    def __init__(
        self,
        factory: "Callable[[], Drafter[object]]",
        cores: Sequence[int] | None = None,
        patience_s: float = 10.0,
    ) -> None:
        self.patience_s = patience_s
        self._replies: SimpleQueue[Reply | None] = SimpleQueue()
        self._spans: list[Span] = []
        self._on_token: OnToken | None = None
        self._tickets: set[int] = set()
        self._serial = 0  # of the last question asked; a reply to an older one (interrupted) is dropped
        self._connection, self._child = _launch(cores)
        self._listener = threading.Thread(target=self._listen, name="drafter-link", daemon=True)
        self._listener.start()
        self._send(("load", pickle.dumps(factory)))
        kind, (_, _, reason) = self._reply(LOAD_TIMEOUT_S)
        if kind == "refused":
            self.close()
            raise CrossdraftError(reason)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def start(self, ticket: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        self._on_token = on_token
        self._tickets.add(ticket)
        self._ask("start", (ticket, request, nodes, on_token is not None))

    def collect(self, ticket: int) -> Draft:
        self._send(("stop", None))
        return unpack_draft(self._answer())

    def propose(self, tickets: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        asked = [(ticket, budget.nodes, budget.min_confidence) for ticket, budget in zip(tickets, budgets, strict=True)]
        self._ask("propose", asked)
        return [unpack_draft(draft) for draft in self._answer()]

    def commit(self, tickets: Sequence[int], verdicts: Sequence[Committed]) -> None:
        self._send(
            ("commit", [(ticket, verdict.path, verdict.tokens) for ticket, verdict in zip(tickets, verdicts, strict=True)])
        )

    def end(self, tickets: Sequence[int]) -> None:
        known = [ticket for ticket in tickets if ticket in self._tickets]
        self._tickets.difference_update(known)
        self._send(("end", known))

    def drain(self) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans

    def close(self) -> None:
        try:
            self._connection.send(("close", None))
            self._child.wait(timeout=1.0)
        except (OSError, subprocess.TimeoutExpired):
            self._child.kill()
            self._child.wait()
        self._connection.close()

    def _send(self, message: tuple[str, object]) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise DrafterLost("the drafter's process ended") from error

    def _ask(self, kind: str, value: object) -> None:
        self._serial += 1
        self._send((kind, (self._serial, value)))

    def _answer(self) -> Any:
        """The reply to the last question; spans that came with it are kept."""
        while True:
            kind, (serial, spans, body) = self._reply(self.patience_s)
            if serial == self._serial:
                break
        self._spans.extend(spans)
        if kind == "refused":
            raise CrossdraftError(body)
        return body

    def _reply(self, timeout: float) -> Reply:
        try:
            message = self._replies.get(timeout=timeout)
        except Empty:
            self._child.kill()
            raise DrafterLost(f"the drafter did not answer within {timeout:g} s") from None
        if message is None:
            raise DrafterLost("the drafter's process ended")
        return message

    def _listen(self) -> None:
        """Sort what comes in: tokens go to whoever watches, everything else is a reply."""
        while True:
            try:
                kind, value = self._connection.recv()
            except (EOFError, OSError):
                self._replies.put(None)
                return
            if kind == "token":
                if self._on_token is not None:
                    self._on_token(value)
            else:
                self._replies.put((kind, value))


def _launch(cores: Sequence[int] | None) -> tuple[Connection, "subprocess.Popen[bytes]"]:
    """Start the worker and wait until it has called back."""
    key = secrets.token_bytes(32)
    environment = dict(os.environ)
    if cores is not None:
        environment["OMP_NUM_THREADS"] = str(len(cores))
    with tempfile.TemporaryDirectory(prefix="crossdraft-") as folder:
        address = str(Path(folder) / "link")
        with Listener(address, family="AF_UNIX", authkey=key) as listener:
            child = subprocess.Popen(
                [sys.executable, "-m", "crossdraft.engine.worker", address, ",".join(map(str, cores or ()))],
                stdin=subprocess.PIPE,
                env=environment,
            )
            stdin = child.stdin
            if stdin is None:
                raise CrossdraftError("The drafter's process could not be started.")
            stdin.write(key.hex().encode())
            stdin.close()
            watcher = threading.Thread(target=_wake_if_dead, args=(child, address), daemon=True)
            watcher.start()
            try:
                return listener.accept(), child
            except (EOFError, OSError) as error:
                child.kill()
                raise CrossdraftError(
                    f"The drafter's process could not be started (exit status {child.poll()}); "
                    "see its message above, or use the inline placement."
                ) from error


def _wake_if_dead(child: "subprocess.Popen[bytes]", address: str) -> None:
    """`accept` has no timeout: if the child ends before it calls, knock in its place so that accept fails."""
    import socket

    child.wait()
    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(address)
        except OSError:
            return  # the child had connected, or the listener is gone: nobody waits
