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
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from crossdraft.engine.drafter import Budget, Committed, Draft, Drafter, Needs
from crossdraft.engine.handled import Handled
from crossdraft.engine.placement import NOTHING, DrafterLost, OnToken
from crossdraft.engine.request import Request
from crossdraft.engine.timeline import Span
from crossdraft.engine.wire import pack_request, unpack_draft
from crossdraft.errors import CrossdraftError

LOAD_TIMEOUT_S = 600.0  # a 7B drafter from a slow disk
Message = tuple[str, object]  # kind, body
Turn = tuple[int, tuple[int, ...]]  # a verdict: how many came before it, the tokens that it emits
Reply = tuple[
    str, tuple[Any, list[Span], Any]
]  # kind, (serial, or ticket and turn; the worker's spans; body)


class Process:
    """A placement that runs `factory()` in a child process.

    The target never waits for a slow reader: if the drafter has not read the request when the target is at its last
    piece, the answer begins without it and the drafter joins when it is ready.

    Args:
        factory: makes the drafter, there; must be picklable (a module's function or a `functools.partial` of one).
        cores: CPU cores the child may use; `None` = those of this process.
        patience_s: how long a reply may take, or a stop signal be unheeded, before the drafter counts as hanging.
        grace_s: how long the ride-along pass waits for a draft that was told to stop: about one drafting step.
        ahead: what the child does while the target verifies; see `ahead.POLICIES`.

    Raises:
        CrossdraftError: the child could not load the drafter.
    """

    def __init__(
        self,
        factory: "Callable[[], Drafter[Any]]",
        cores: Sequence[int] | None = None,
        patience_s: float = 10.0,
        grace_s: float = 0.05,
        ahead: str = "off",
    ) -> None:
        self.patience_s = patience_s
        self.grace_s = grace_s
        self._incoming: SimpleQueue[Reply | None] = SimpleQueue()
        self._replies: dict[int, tuple[str, Any]] = {}  # arrived, not fetched yet; by the question's serial
        self._prepared: dict[int, dict[Turn, Any]] = {}  # ticket -> drafts for what a verdict may be
        self._verdicts: dict[int, Turn] = {}  # ticket -> the last one
        self._reading: dict[int, tuple[int, float]] = {}  # ticket -> serial and time of its `start`
        self._spans: list[Span] = []
        self._delivered = threading.Event()  # cleared while a courier is on its way with a request
        self._delivered.set()
        self._on_token: OnToken | None = None
        self._tickets: set[int] = set()
        self._serial = 0
        self._refused: dict[int, str] = {}  # ticket -> why; until its next `propose`
        self._cores = tuple(cores or ())
        self._sent = 0  # messages since it was loaded
        self._connection, self._child, self._handled = _launch(cores)
        self._listener = threading.Thread(target=self._listen, name="drafter-link", daemon=True)
        self._listener.start()
        try:
            self._connection.send(("load", (pickle.dumps(factory), ahead)))
            self.needs: Needs = self._fetch(0, LOAD_TIMEOUT_S)
        except BaseException as error:
            self.close()
            if isinstance(error, DrafterLost):
                raise CrossdraftError(
                    f"The drafter could not be loaded: {error}; see its message above."
                ) from error
            raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def start(self, ticket: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        self._on_token = on_token
        self._tickets.add(ticket)
        if not self.needs.video:  # decoded frames are large
            path = request.video if isinstance(request.video, str | os.PathLike) else None
            request = replace(request, video=path, inputs=None)
        packed, arrays = pack_request(request)
        asked = (ticket, packed, [array.nbytes for array in arrays], nodes, on_token is not None)
        serial = self._ask("start", asked, send=lambda message: self._send_beside(message, arrays))
        self._reading[ticket] = (serial, time.monotonic())

    def collect(self, ticket: int) -> Draft:
        self._send(("stop", None))
        serial, _ = self._reading[ticket]
        self._reading[ticket] = (serial, time.monotonic())  # it hangs if it does not heed the signal
        draft = self._started(ticket, self.grace_s)
        return NOTHING if draft is None else draft

    def propose(self, tickets: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        for ticket in tickets:
            if ticket in self._reading:
                try:
                    self._started(ticket, 0.0)
                except CrossdraftError as error:  # the answer has begun: it goes on without the drafter
                    self._refused[ticket] = str(error)
        drafts = {
            ticket: replace(NOTHING, refusal=self._refused.get(ticket))
            for ticket in tickets
            if ticket in self._reading or ticket in self._refused
        }
        for ticket, budget in zip(tickets, budgets, strict=True):
            if ticket not in drafts and (draft := self._take(ticket, budget)) is not None:
                drafts[ticket] = draft
        asked = [
            (ticket, budget.nodes, budget.min_confidence)
            for ticket, budget in zip(tickets, budgets, strict=True)
            if ticket not in drafts
        ]
        made = self._fetch(self._ask("propose", asked), self.patience_s) if asked else ()
        for (ticket, *_), draft in zip(asked, made, strict=True):
            drafts[ticket] = unpack_draft(draft)
        return [drafts[ticket] for ticket in tickets]

    def ready(self, tickets: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        """What was prepared for the last verdicts, and nothing where nothing is here: nobody is asked or waited for."""
        known = [ticket not in self._reading and ticket not in self._refused for ticket in tickets]
        return [
            (self._take(ticket, budget) if able else None) or NOTHING
            for ticket, budget, able in zip(tickets, budgets, known, strict=True)
        ]

    def _take(self, ticket: int, budget: Budget) -> Draft | None:
        """What was prepared for the last verdict, if it is here already: then the target waits for nothing."""
        with suppress(Empty):
            while True:
                self._sort(self._incoming.get_nowait())
        prepared = self._prepared.pop(ticket, {})
        packed = prepared.get(self._verdicts[ticket]) if ticket in self._verdicts else None
        if packed is None:
            return None
        draft = unpack_draft(packed).first(budget.nodes)
        self._send(("took", (ticket, draft.tree.tokens, draft.tree.parents)))
        return draft

    def commit(self, tickets: Sequence[int], verdicts: Sequence[Committed]) -> None:
        for ticket, verdict in zip(tickets, verdicts, strict=True):
            before, _ = self._verdicts.get(ticket, (-1, ()))
            self._verdicts[ticket] = before + 1, verdict.tokens
        missed = [ticket for ticket in tickets if ticket in self._reading]
        told = zip(tickets, verdicts, strict=True)
        self._send(("commit", (missed, [(ticket, v.path, v.tokens, v.probe_top) for ticket, v in told])))

    def end(self, tickets: Sequence[int]) -> None:
        known = [ticket for ticket in tickets if ticket in self._tickets]
        self._tickets.difference_update(known)
        for ticket in known:
            self._reading.pop(ticket, None)
            self._refused.pop(ticket, None)
            self._verdicts.pop(ticket, None)
            self._prepared.pop(ticket, None)
        self._send(("end", known))

    def drain(self) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans

    def spare_cores(self) -> tuple[int, ...]:
        return self._cores if self._handled.get() == self._sent else ()

    def close(self) -> None:
        try:
            self._send(("close", None))
            self._child.wait(timeout=1.0)
        except (DrafterLost, subprocess.TimeoutExpired):
            self._child.kill()
            self._child.wait()
        self._connection.close()

    def _started(self, ticket: int, timeout: float) -> Draft | None:
        """The draft made while reading, once it is there."""
        serial, asked = self._reading[ticket]
        try:
            draft = unpack_draft(self._fetch(serial, timeout))
        except TimeoutError:
            if time.monotonic() - asked > self.patience_s:
                raise self._hangs(self.patience_s) from None
            return None
        except CrossdraftError:
            del self._reading[ticket]
            raise
        del self._reading[ticket]
        self._prepared.pop(ticket, None)  # whatever came before was for another request of that number
        return draft

    def _ask(self, kind: str, value: object, send: Callable[[Message], None] | None = None) -> int:
        """Send a question; returns its serial. Answers that nobody fetched (Ctrl-C came first) are dropped."""
        self._serial += 1
        awaited = {serial for serial, _ in self._reading.values()}
        self._replies = {serial: reply for serial, reply in self._replies.items() if serial in awaited}
        (send or self._send)((kind, (self._serial, value)))
        return self._serial

    def _send_beside(self, message: Message, arrays: Sequence[memoryview]) -> None:
        """Send without waiting: clips and recordings are large, and the child may be in the midst of a pass."""
        self._await_courier()
        if self._child.poll() is not None:
            raise DrafterLost("its process ended")
        courier = threading.Thread(target=self._deliver, args=(message, arrays), name="courier", daemon=True)
        self._delivered.clear()
        self._sent += 1
        try:
            courier.start()
        except RuntimeError:  # no more threads may be started
            self._delivered.set()
            raise

    def _deliver(self, message: Message, arrays: Sequence[memoryview]) -> None:
        try:
            with suppress(OSError):  # the listener sees that the child is gone
                self._connection.send(message)
                for array in arrays:
                    self._connection.send_bytes(array)
        finally:
            self._delivered.set()

    def _await_courier(self) -> None:
        """Messages arrive in the order in which they were sent."""
        # No `join`: a thread whose `join` was interrupted (Ctrl-C) passes for ended, though it is not (Python 3.11).
        if not self._delivered.wait(self.patience_s):
            raise self._hangs(self.patience_s)

    def _send(self, message: Message) -> None:
        self._await_courier()
        self._sent += 1
        try:
            self._connection.send(message)
        except OSError as error:
            raise DrafterLost("its process ended") from error

    def _fetch(self, serial: int, timeout: float) -> Any:
        """The reply to a question.

        Raises:
            TimeoutError: a `start` was not answered yet (any other question: the drafter counts as lost).
        """
        deadline = time.monotonic() + timeout
        while serial not in self._replies:
            try:
                message = self._incoming.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                if any(serial == reading for reading, _ in self._reading.values()):
                    raise TimeoutError from None
                raise self._hangs(timeout) from None
            self._sort(message)
        kind, body = self._replies.pop(serial)
        if kind == "refused":
            raise CrossdraftError(body)
        return body

    def _sort(self, message: Reply | None) -> None:
        """Keep what came in until somebody asks for it."""
        if message is None:
            raise DrafterLost("its process ended")
        kind, (key, spans, body) = message
        self._spans.extend(spans)
        if kind == "prepared":
            ticket, turn = key
            if ticket in self._tickets:
                self._prepared.setdefault(ticket, {})[turn] = body
        else:
            self._replies[key] = (kind, body)

    def _hangs(self, seconds: float) -> DrafterLost:
        self._child.kill()
        return DrafterLost(f"it did not answer within {seconds:g} s")

    def _listen(self) -> None:
        """Sort what comes in: tokens go to whoever watches, everything else is a reply."""
        while True:
            try:
                kind, value = self._connection.recv()
            except (EOFError, OSError):
                self._incoming.put(None)
                return
            if kind == "token":
                if self._on_token is not None:
                    self._on_token(value)
            else:
                self._incoming.put((kind, value))


def _launch(cores: Sequence[int] | None) -> tuple[Connection, "subprocess.Popen[bytes]", Handled]:
    """Start the worker and wait until it has called back."""
    key = secrets.token_bytes(32)
    environment = dict(os.environ)
    if cores is not None:
        environment["OMP_NUM_THREADS"] = str(len(cores))
    with tempfile.TemporaryDirectory(prefix="crossdraft-", ignore_cleanup_errors=True) as folder:
        # Windows has no sockets in folders; its pipes have names of their own.
        address = rf"\\.\pipe\{Path(folder).name}" if sys.platform == "win32" else str(Path(folder) / "link")
        handled = Handled(Path(folder), create=True)
        with _listener(address, key) as listener:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "crossdraft.engine.worker",
                    address,
                    ",".join(map(str, cores or ())),
                    folder,
                ],
                stdin=subprocess.PIPE,
                env=environment,
            )
            stdin = child.stdin
            if stdin is None:
                raise CrossdraftError("The drafter's process could not be started.")
            with suppress(BrokenPipeError):  # it is dead already: the watcher sees to that
                stdin.write(key.hex().encode())
                stdin.close()
            watcher = threading.Thread(target=_wake_if_dead, args=(child, address), daemon=True)
            watcher.start()
            try:
                return listener.accept(), child, handled
            except KeyboardInterrupt:
                child.kill()
                raise
            except (EOFError, OSError) as error:
                child.kill()
                raise CrossdraftError(
                    f"The drafter's process could not be started (exit status {child.poll()}); "
                    "see its message above, or use the inline placement."
                ) from error


def _listener(address: str, key: bytes) -> Listener:
    try:
        return Listener(address, authkey=key)  # of the kind that the address names
    except OSError as error:  # such as a folder for temporary files with too long a name
        raise CrossdraftError(
            f"The drafter's process cannot be reached at {address} ({error}); set TMPDIR to a folder with a short "
            "name, or use the inline placement."
        ) from error


def _wake_if_dead(child: "subprocess.Popen[bytes]", address: str) -> None:
    """`accept` has no timeout: if the child ends before it calls, knock in its place so that accept fails."""
    child.wait()
    with suppress(OSError):  # the child had connected, or the listener is gone: nobody waits
        Client(address).close()
