"""A drafter in a process of its own, on its own cores or its own GPU.

The worker is an ordinary child (`python -m crossdraft.engine.runner.worker`), not a fork of ours: it can pin itself to
its cores before torch starts a thread, and a script needs no `__main__` guard. Both sides speak over a private socket;
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
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

from torch import Tensor

from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.handled import Handled
from crossdraft.engine.runner.link import Link, Message
from crossdraft.engine.runner.runner import NOTHING, DrafterLost, OnToken
from crossdraft.engine.runner.wire import pack_request, pack_tensor, unpack_draft
from crossdraft.engine.timeline import Span
from crossdraft.errors import CrossdraftError

CALL_TIMEOUT_S = 120.0  # for a child to start and call back, before it loads anything
LOAD_TIMEOUT_S = 600.0  # a 7B drafter from a slow disk
PATIENCE_S = 10.0
LONGEST_WAIT_S = 1.0  # for a draft, where it is known that none is worth more
TOO_LATE = "its draft came too late, and what was drawn for it must not be judged any more"
Turn = tuple[int, tuple[int, ...]]  # a verdict: how many came before it, the tokens that it emits


class Process:
    """A placement that runs `factory()` in a child process.

    The target never waits for a slow reader: if the drafter has not read the request when the target is at its last
    piece, the answer begins without it and the drafter joins when it is ready. Nor does it wait for a draft longer than
    that can save (`Budget.wait_s`).

    Args:
        factory: makes the drafter, there; must be picklable (a module's function or a `functools.partial` of one).
        cores: CPU cores the child may use; `None` = those of this process.
        patience_s: how long the child may be silent while a question is open before it counts as hanging.
        grace_s: how long the ride-along pass waits for a draft that was told to stop: about one drafting step.
        ahead: what the child does while the target verifies; see `ahead.POLICIES`.

    Raises:
        CrossdraftError: the child could not load the drafter.
    """

    def __init__(
        self,
        factory: "Callable[[], Drafter[Any]]",
        cores: Sequence[int] | None = None,
        patience_s: float = PATIENCE_S,
        grace_s: float = 0.05,
        ahead: str = "off",
    ) -> None:
        self._settings = factory, cores, patience_s, grace_s, ahead
        self.patience_s = patience_s
        self.grace_s = grace_s
        self._incoming: SimpleQueue[Any] = SimpleQueue()
        self._replies: dict[int, tuple[str, Any]] = {}  # arrived, not fetched yet; by the question's serial
        self._open: dict[int, float] = {}  # questions that have no reply yet, and since when one is due
        self._heard = time.monotonic()  # when the child last sent anything
        self._prepared: dict[int, dict[Turn, Any]] = {}  # ticket -> drafts for what a verdict may be
        self._verdicts: dict[int, Turn] = {}  # ticket -> the last one
        self._reading: dict[int, int] = {}  # ticket -> serial of its `start`
        self._spans: list[Span] = []
        self._on_token: dict[int, OnToken] = {}
        self._greedy: dict[int, bool] = {}  # by ticket
        self._serial = 0
        self._refused: dict[int, str] = {}  # ticket -> why
        self._cores = tuple(cores or ())
        self._sent = 0  # messages since it was loaded
        connection, self._child, self._handled = _launch(cores)
        self._link = Link(connection, self._receive)
        try:
            self._link.send(("load", (pickle.dumps(factory), ahead)))
            self._open[0] = time.monotonic()
            self.needs: Needs = self._fetch(0, LOAD_TIMEOUT_S)
        except BaseException as error:
            self.close()
            if isinstance(error, DrafterLost | TimeoutError):
                why = "it took too long" if isinstance(error, TimeoutError) else error
                raise CrossdraftError(f"The drafter could not be loaded: {why}; see its message above.") from error
            raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def restarted(self) -> Self:
        return type(self)(*self._settings)

    def start(self, request_id: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        if on_token is not None:
            self._on_token[request_id] = on_token
        self._greedy[request_id] = request.sampling.greedy
        if not self.needs.video:  # decoded frames are large
            path = request.video if isinstance(request.video, str | os.PathLike) else None
            request = replace(request, video=path, inputs=None)
        packed, arrays = pack_request(request)
        asked = (request_id, packed, nodes, on_token is not None, [array.nbytes for array in arrays])
        self._reading[request_id] = self._ask("start", asked, arrays)
        del self._open[self._serial]  # a prefill may take minutes; the reply is due when it is told to stop

    def see(self, request_id: int, features: Tensor | None) -> None:
        if not self.needs.visual:
            return
        packed, arrays = pack_tensor(features)
        self._send(("visual", (request_id, packed, [array.nbytes for array in arrays])), arrays)

    def collect(self, request_id: int) -> Draft:
        self._send(("stop", None))
        self._sort_all()
        overdue = self._unanswered() and self._silent_s() > LONGEST_WAIT_S  # nothing will come soon
        serial = self._reading[request_id]
        self._open[serial] = time.monotonic()  # it hangs if it does not heed the signal
        try:
            draft = self._started(request_id, 0.0 if overdue else self.grace_s)
        except CrossdraftError as error:
            return self._refuse(request_id, str(error))
        return NOTHING if draft is None else draft

    def propose(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        drafts: dict[int, Draft] = {}
        for request_id, budget in zip(request_ids, budgets, strict=True):
            if request_id in self._reading:
                try:
                    self._started(request_id, 0.0)
                except CrossdraftError as error:  # the answer has begun: it goes on without the drafter
                    self._refused[request_id] = str(error)
            if request_id in self._refused:
                drafts[request_id] = replace(NOTHING, refusal=self._refused[request_id])
            elif request_id in self._reading:
                drafts[request_id] = NOTHING
            elif (draft := self._take(request_id, budget)) is not None:
                drafts[request_id] = draft
        asked = [(t, b) for t, b in zip(request_ids, budgets, strict=True) if t not in drafts]
        made = self._fetch_drafts(asked) if asked and not self._late() else ()
        drafts |= dict(zip((request_id for request_id, _ in asked), made, strict=False))
        return [drafts.get(request_id, NOTHING) for request_id in request_ids]

    def ready(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        """What was prepared for the last verdicts, and nothing where nothing is here: nobody is asked or waited for.

        Greedy answers only: of drafts that are drawn, those that end early come in time and others do not, so what is
        judged would follow another law than the one told with it.
        """
        known = [
            self._greedy[request_id] and request_id not in self._reading and request_id not in self._refused
            for request_id in request_ids
        ]
        return [
            (self._take(request_id, budget) if able else None) or NOTHING
            for request_id, budget, able in zip(request_ids, budgets, known, strict=True)
        ]

    def commit(self, request_ids: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        for request_id, output in zip(request_ids, outputs, strict=True):
            before, _ = self._verdicts.get(request_id, (-1, ()))
            self._verdicts[request_id] = before + 1, output.tokens
        missed = [request_id for request_id in request_ids if request_id in self._reading]
        told = zip(request_ids, outputs, strict=True)
        self._send(("commit", (missed, [(request_id, v.path, v.tokens, v.probe_top) for request_id, v in told])))

    def end(self, request_ids: Sequence[int]) -> None:
        known = [request_id for request_id in request_ids if self._greedy.pop(request_id, None) is not None]
        for request_id in known:
            serial = self._reading.pop(request_id, None)
            if serial is not None and serial not in self._replies:
                self._open.setdefault(serial, time.monotonic())  # still to be answered, though nobody waits for it
            self._refused.pop(request_id, None)
            self._verdicts.pop(request_id, None)
            self._prepared.pop(request_id, None)
            self._on_token.pop(request_id, None)
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
        self._link.close()

    def _fetch_drafts(self, asked: Sequence[tuple[int, Budget]]) -> list[Draft]:
        """Have these requests drafted for; nothing where that takes longer than it is worth."""
        waits = [budget.wait_s for _, budget in asked]
        worth = [wait for wait in waits if wait is not None]
        wait = min(max(worth), LONGEST_WAIT_S, self.patience_s) if len(worth) == len(waits) else self.patience_s
        if len(worth) == len(waits) and not all(self._greedy[request_id] for request_id, _ in asked):
            wait = min(LONGEST_WAIT_S, self.patience_s)  # what is drawn and not judged ends drafting; see below
        serial = self._ask("propose", [(t, budget.nodes, budget.min_confidence) for t, budget in asked])
        try:
            sent = self._fetch(serial, wait)
        except TimeoutError:
            self._unanswered()
            # A drafter drafts on from what it drew. That this took long may depend on what was drawn, so it would
            # follow another law than the one told with it.
            return [
                NOTHING if self._greedy[request_id] else self._refuse(request_id, TOO_LATE) for request_id, _ in asked
            ]
        return drafts_of([unpack_draft(draft) for draft in sent] if isinstance(sent, list) else sent, len(asked))

    def _take(self, request_id: int, budget: Budget) -> Draft | None:
        """What was prepared for the last verdict, if it is here already: then the target waits for nothing."""
        self._sort_all()
        prepared = self._prepared.pop(request_id, {})
        packed = prepared.get(self._verdicts[request_id]) if request_id in self._verdicts else None
        if packed is None:
            return None
        draft = unpack_draft(packed)
        if draft.fault is None:
            draft = draft.first(budget.nodes)
            self._send(("took", (request_id, draft.tree.tokens, draft.tree.parents)))
        return draft

    def _started(self, request_id: int, timeout: float) -> Draft | None:
        """The draft made while reading, once it is there.

        Raises:
            CrossdraftError: the drafter cannot read the request.
            DrafterLost: it hangs, or is gone.
        """
        try:
            packed = self._fetch(self._reading[request_id], timeout)
        except TimeoutError:
            self._unanswered()
            return None
        except CrossdraftError:
            del self._reading[request_id]
            raise
        del self._reading[request_id]
        self._prepared.pop(request_id, None)  # whatever came before was for another request of that number
        return unpack_draft(packed)

    def _refuse(self, request_id: int, why: str) -> Draft:
        """There will be no draft for this request any more."""
        self._refused[request_id] = why
        return replace(NOTHING, refusal=why)

    def _late(self) -> bool:
        """True while the child still drafts for a round that is over: another question would only wait behind it."""
        self._sort_all()
        reading = self._reading.values()
        return any(serial not in reading for serial in self._unanswered())

    def _unanswered(self) -> list[int]:
        """Questions whose answers are due.

        Raises:
            DrafterLost: one has been for too long, and the child has been silent since.
        """
        if self._silent_s() >= self.patience_s:
            self._child.kill()
            raise DrafterLost(f"it did not answer within {self.patience_s:g} s")
        return list(self._open)

    def _silent_s(self) -> float:
        """Seconds since an answer is due and nothing has been heard; 0 if none is due."""
        if not self._open:
            return 0.0
        return time.monotonic() - max(self._heard, min(self._open.values()))

    def _ask(self, kind: str, value: object, arrays: Sequence[memoryview] = ()) -> int:
        """Send a question; returns its serial. Answers that nobody fetched (Ctrl-C came first) are dropped."""
        self._serial += 1
        awaited = set(self._reading.values())
        self._replies = {serial: reply for serial, reply in self._replies.items() if serial in awaited}
        self._open[self._serial] = time.monotonic()
        self._send((kind, (self._serial, value)), arrays)
        return self._serial

    def _send(self, message: Message, arrays: Sequence[memoryview] = ()) -> None:
        self._sent += 1
        try:
            self._link.send(message, arrays)
        except BlockingIOError as error:
            raise DrafterLost("it takes no messages any more") from error
        except OSError as error:
            raise DrafterLost("its process ended") from error
        if arrays and self._child.poll() is not None:  # nobody waits to see them sent
            raise DrafterLost("its process ended")

    def _fetch(self, serial: int, timeout: float) -> Any:
        """The reply to a question.

        Raises:
            TimeoutError: it is not here yet.
            CrossdraftError: it is a refusal.
            DrafterLost: the child is gone.
        """
        deadline = time.monotonic() + timeout
        while serial not in self._replies:
            try:
                message = self._incoming.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutError from None
            self._sort(message)
        kind, body = self._replies.pop(serial)
        self._open.pop(serial, None)
        if kind == "refused":
            raise CrossdraftError(str(body))
        return body

    def _sort_all(self) -> None:
        with suppress(Empty):
            while True:
                self._sort(self._incoming.get_nowait())

    def _sort(self, message: Any) -> None:
        """Keep what came in until somebody asks for it."""
        if message is None:
            raise DrafterLost("its process ended")
        self._heard = time.monotonic()
        try:
            kind, (key, spans, body) = message
            self._spans.extend(span for span in spans if isinstance(span, Span))
            if kind == "prepared":
                request_id, turn = key
                if request_id in self._greedy:
                    self._prepared.setdefault(request_id, {})[turn] = body
            else:
                self._open.pop(key, None)
                self._replies[key] = (kind, body)
        except (TypeError, ValueError) as error:
            raise DrafterLost("it sent a message that cannot be read") from error

    def _receive(self, message: Any) -> None:
        """Tokens go at once to whoever watches, everything else is sorted when somebody looks. Runs in a thread."""
        match message:
            case ("token", (int(request_id), int(token))):
                if (on_token := self._on_token.get(request_id)) is not None:
                    on_token(token)
            case _:
                self._incoming.put(message)


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
                    "crossdraft.engine.runner.worker",
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
            slow = threading.Timer(CALL_TIMEOUT_S, child.kill)
            slow.start()
            try:
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
