"""A drafter in a process of its own, on its own cores or its own GPU.

The process is an ordinary child (`python -m crossdraft.engine.runner`), not a fork: it can pin itself to its cores
before torch starts a thread, and a script needs no `__main__` guard. (`child.START` may start it in another way, as a
fork of a process in which torch has no threads either.) Parent and child speak over a private socket. A hidden draft
ends at its stop message, or when the target waits for something else; another request begins after it.
"""

import itertools
import pickle
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Needs, OnToken, Proposal, VerifyOutput
from crossdraft.engine.prompt import PromptIds
from crossdraft.engine.request import Request
from crossdraft.engine.runner.child import start_child
from crossdraft.engine.runner.link import Link, Message
from crossdraft.engine.runner.runner import DrafterLost
from crossdraft.engine.runner.wire import pack_request, pack_tensor, unpack_draft
from crossdraft.engine.timeline import Span
from crossdraft.errors import CrossdraftError

LOAD_TIMEOUT_S = 600.0  # without progress, of which a library reports none while it loads 7B weights from a slow disk
DRAFTER_TIMEOUT_S = 10.0
LONGEST_WAIT_S = 1.0  # longest wait for an overdue reply before a hidden draft; shortest time limit of a sampled draft
LENDING_S = 0.01  # drafts that take longer also use the target's cores: lending these costs less than that
TOO_LATE = "its draft came too late, and what was drawn for it must not be verified any more"


@dataclass(eq=False)
class ProcessState:
    """One request of a drafter in another process.

    Args:
        key: the request's key in the child.
        certain: true if nothing is drawn but by the request's seed, so that late drafts may be dropped without bias.
        launch: number of the child that knows the request; a restarted child does not.
        hidden: serial of the question for its hidden draft, until the reply is taken.
        asked: serial of the question for its next draft, until the reply is taken.
        refusal: why there will be no draft for it any more.
        since: tokens committed since that question.
    """

    key: int
    certain: bool
    launch: int
    hidden: int | None = None
    asked: int | None = None
    refusal: str | None = None
    since: tuple[int, ...] = ()


class ProcessDrafter:
    """A drafter whose work is done in a child process, by the drafter that `factory()` makes there.

    The target never waits while the drafter reads a request: if that takes longer than the prefill, the answer begins
    without drafts, and they come once the drafter is ready. The target waits for a draft no longer than the draft can
    save (`Budget.wait_s`). At 0 the drafter drafts while the target verifies, for the text as it will be if the target
    agrees with it, and the target takes what has come by then.

    Args:
        factory: makes the drafter, in the child; must be picklable (a module's function or a `functools.partial` of
            one).
        cores: CPU cores the child may use; `None` = those of this process.
        drafter_timeout_s: seconds without progress, while a question is open, after which the child counts as hanging;
            see `engine.progress`.
        drain_timeout_s: seconds that the ride-along pass waits for a stopped draft: about one drafting step.
        lent_cores: CPU cores of the target that the child uses, too, while the target waits for its drafts.

    Raises:
        CrossdraftError: the child could not load the drafter.
    """

    def __init__(
        self,
        factory: "Callable[[], Drafter[Any]]",
        cores: Sequence[int] | None = None,
        drafter_timeout_s: float = DRAFTER_TIMEOUT_S,
        drain_timeout_s: float = 0.05,
        lent_cores: Sequence[int] | None = None,
    ) -> None:
        self._factory, self._cores = factory, cores
        self._lent_cores = tuple(core for core in lent_cores or () if cores is not None and core not in cores)
        self._draft_s = 0.0  # seconds that the target waited for the last draft
        self.drafter_timeout_s = drafter_timeout_s
        self.drain_timeout_s = drain_timeout_s
        self._launches = 0
        self._dropped = deque[tuple[int, int]]()  # launch and key of forks that were garbage-collected
        self._sends = threading.RLock()  # several threads send: visual features are sent by the thread that makes them
        self._serial = 0
        self._keys = itertools.count()
        self._closed = False
        self._launch()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    # -- the child's life ------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Start the child and have it load the drafter."""
        with self._sends:
            self._launches += 1
        incoming = self._incoming = SimpleQueue[Any]()
        self._replies: dict[int, tuple[str, Any]] = {}  # arrived, not fetched yet; by the question's serial
        self._open: dict[int, float] = {}  # questions without a reply, and the time since which it is due
        self._last_message_s = time.monotonic()  # when the child last sent anything
        self._states: dict[int, ProcessState] = {}
        self._on_token: dict[int, OnToken] = {}
        self._spans: list[Span] = []
        self._sent = 0  # messages since it was loaded
        connection, self._child, self._handled = start_child(self._cores)
        self._link = Link(connection, lambda message: self._receive(incoming, message))
        if self._closed:  # `close` was called meanwhile, and ended the child before this one
            self._child.kill()
            self.stop()
            raise CrossdraftError("The drafter is closed.")
        try:
            self._link.send(("load", (pickle.dumps(self._factory), self._lent_cores)))
            self._open[0] = time.monotonic()
            needs: Needs = self._await(0, LOAD_TIMEOUT_S)
        except BaseException as error:
            self.stop()
            if isinstance(error, DrafterLost | TimeoutError):
                why = f"it made no progress for {LOAD_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error
                raise CrossdraftError(f"The drafter could not be loaded: {why}; see its message above.") from error
            raise
        self.needs = replace(needs, runs_in=frozenset({"process"}))

    def restart(self) -> None:
        """Stop the child and start another; states of the old one get no drafts any more."""
        self.stop()
        if self._closed:
            raise CrossdraftError("The drafter is closed.")
        self._launch()

    def close(self) -> None:
        """Stop the child, for good."""
        self._closed = True
        self.stop()

    def stop(self) -> None:
        """Stop the child; `restart` may follow."""
        try:
            self._send(("close", None))
            self._child.wait(timeout=1.0)
        except (DrafterLost, subprocess.TimeoutExpired):
            self._child.kill()
            self._child.wait()
        self._link.close()

    def spare_cores(self) -> tuple[int, ...]:
        return tuple(self._cores or ()) if self._handled.get() == self._sent else ()

    # -- the drafter's seam ----------------------------------------------------------------------------------------

    def begin(self, requests: Sequence[Request]) -> list[ProcessState]:
        return [self._begin(request) for request in requests]

    def propose(self, states: Sequence[ProcessState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[ProcessState], budgets: Sequence[Budget]) -> Proposal:
        """Ask for drafts; see `AsyncDrafter`."""
        if any(budget.until is not None for budget in budgets):
            return self._ask_hidden(states, budgets)
        drafts: dict[int, Draft] = {}
        for i, (state, budget) in enumerate(zip(states, budgets, strict=True)):
            if (known := self._known(state, budget)) is not None:
                drafts[i] = known
        missing = [i for i in range(len(states)) if i not in drafts]
        question = self._ask_drafts([states[i] for i in missing], [budgets[i] for i in missing])

        def wait() -> list[Draft]:
            made = drafts | dict(zip(missing, question(), strict=False))
            return self._with_spans([made.get(i, NOTHING) for i in range(len(states))])

        return wait

    def late_hidden(self, state: ProcessState) -> Draft | None:
        """Return the hidden draft that came too late for its pass, `None` until it comes; before the next commit.

        Raises:
            DrafterLost: the child hangs, or is gone.
        """
        self._sort_all()
        return self._take_hidden(state, 0.0) if self._mine(state) else None

    def commit(self, states: Sequence[ProcessState], outputs: Sequence[VerifyOutput]) -> None:
        known = [(state, output) for state, output in zip(states, outputs, strict=True) if self._mine(state)]
        for state, output in known:
            if state.asked is not None:
                state.since += output.tokens
        missed = [state.key for state, _ in known if state.hidden is not None]
        wanted = self.needs.successors
        sent = [(s.key, len(o.path), o.tokens, o.successors if wanted else {}) for s, o in known]
        self._send(("commit", (missed, sent)))

    def fork(self, states: Sequence[ProcessState]) -> list[ProcessState]:
        forks = [replace(state, key=next(self._keys), hidden=None, asked=None) for state in states]
        pairs = [(s.key, f.key) for s, f in zip(states, forks, strict=True) if self._mine(s)]
        self._send(("fork", pairs))
        for fork in forks:  # a copy is dropped without `end`
            # Garbage collection may happen while a message is sent: the fork is only noted.
            weakref.finalize(fork, self._dropped.append, (fork.launch, fork.key)).atexit = False
        return forks

    def end(self, states: Sequence[ProcessState]) -> None:
        known = [state.key for state in states if self._mine(state)]
        for state in states:
            if state.hidden is not None and state.hidden not in self._replies and self._mine(state):
                self._open.setdefault(state.hidden, time.monotonic())  # the child still owes the reply
            self._states.pop(state.key, None)
            self._on_token.pop(state.key, None)
        self._send(("end", known))

    # -- questions -------------------------------------------------------------------------------------------------

    def _begin(self, request: Request) -> ProcessState:
        state = ProcessState(next(self._keys), request.sampling.certain, self._launches)
        needs = self.needs
        features: VisualFuture | None = request.visual_features if needs.visual else None
        sent = replace(request, visual_features=None, prompt_ids=None, extras={}, content=None, known=False)
        sent = sent if self.needs.video else sent.without_pixels()
        packed, arrays = pack_request(sent)
        self._states[state.key] = state
        self._send(("begin", (state.key, packed, [array.nbytes for array in arrays])), arrays)
        if features is not None:
            features.add_done_callback(partial(self._send_visual, state))
        if needs.prompt and request.prompt_ids is not None:
            request.prompt_ids.add_done_callback(partial(self._send_prompt, state))
        return state

    def _send_prompt(self, state: ProcessState, ids: PromptIds) -> None:
        """Send the prompt's token ids, which are known now."""
        with self._sends, suppress(DrafterLost):  # the next call raises it
            if self._mine(state) and state.key in self._states:
                self._send(("prompt", (state.key, ids.result())))

    def _send_visual(self, state: ProcessState, features: Any) -> None:
        """Send the target's visual features, or that there will be none."""
        failed = features.cancelled() or features.exception() is not None
        packed, arrays = pack_tensor(None if failed else features.result())
        with self._sends, suppress(DrafterLost):  # the next call raises it
            if self._mine(state):
                self._send(("visual", (state.key, packed, [array.nbytes for array in arrays])), arrays)

    def _ask_hidden(self, states: Sequence[ProcessState], budgets: Sequence[Budget]) -> Proposal:
        """Begin hidden drafts; the returned function waits for each budget's `until`, then stops and takes them."""
        for state, budget in zip(states, budgets, strict=True):
            if budget.on_token is not None:
                self._on_token[state.key] = budget.on_token
            state.hidden = self._ask("hidden", (state.key, budget.nodes, budget.on_token is not None))
            del self._open[state.hidden]  # a prefill may take minutes; the reply is due when it is told to stop

        def wait() -> list[Draft]:
            for budget in budgets:
                if budget.until is not None:
                    budget.until.wait()
            self._send(("stop", [state.hidden for state in states]))
            self._sort_all()
            overdue = self._unanswered() and self._overdue_s() > LONGEST_WAIT_S  # nothing will come soon
            for state in states:
                if state.hidden is not None:
                    self._open[state.hidden] = time.monotonic()  # the reply is due now
            timeout = 0.0 if overdue else self.drain_timeout_s
            return self._with_spans([self._take_hidden(state, timeout) or NOTHING for state in states])

        return wait

    def _take_hidden(self, state: ProcessState, timeout: float) -> Draft | None:
        """Return the hidden draft if it comes within `timeout` seconds, else `None`.

        Raises:
            DrafterLost: the child hangs, or is gone.
        """
        if state.hidden is None:
            return None
        try:
            draft = drafts_of([unpack_draft(self._fetch(state.hidden, timeout))], 1)[0]
        except TimeoutError:
            self._unanswered()
            return None
        except CrossdraftError as error:
            draft = replace(NOTHING, refusal=str(error))
        state.hidden, state.refusal = None, draft.refusal
        return draft

    def _known(self, state: ProcessState, budget: Budget) -> Draft | None:
        """Return a draft that needs no wait: it is refused, still prefilling or not waited for; else `None`."""
        if not self._mine(state):
            return replace(NOTHING, refusal="its process ended")
        if state.hidden is not None and (late := self._take_hidden(state, 0.0)) is not None:
            self._spans.extend(late.spans)
        if state.refusal is not None:
            return replace(NOTHING, refusal=state.refusal)
        if state.hidden is not None:
            return NOTHING
        return self._draft_ahead(state, budget) if budget.wait_s == 0 else None

    def _draft_ahead(self, state: ProcessState, budget: Budget) -> Draft:
        """Return the draft that has come, as far as the text agrees with it, and ask for the next one."""
        if not state.certain:
            # Drawn drafts that end early would come in time and others not, so the verified tokens would follow another
            # distribution than the one sent with them.
            return NOTHING
        self._sort_all()
        draft = NOTHING
        if state.asked is not None:
            if state.asked not in self._replies:
                self._unanswered()
                return NOTHING  # another question would only wait behind it
            serial, state.asked = state.asked, None
            draft = _unpacked(self._fetch(serial, 0.0), 1)[0].after(state.since)
        if draft.refusal is None:
            # While the target verifies this draft, the child writes it again, from its own memory, and what follows it.
            nodes = len(draft.tree) + 1 + budget.nodes
            state.asked, state.since = self._ask("ahead", [(state.key, nodes, 0.0)]), ()
        return draft.first(budget.nodes)

    def _ask_drafts(self, states: Sequence[ProcessState], budgets: Sequence[Budget]) -> Proposal:
        """Ask the child for drafts; a draft that takes longer than it can save is left empty."""
        if not states or self._late():
            return lambda: [NOTHING] * len(states)
        worth = [budget.wait_s for budget in budgets if budget.wait_s is not None]
        all_worth = len(worth) == len(budgets)
        wait = min(max(worth), self.drafter_timeout_s) if all_worth else None
        if wait is not None and not all(state.certain for state in states):
            wait = min(max(wait, LONGEST_WAIT_S), self.drafter_timeout_s)  # an unverified sampled draft ends drafting
        questions = [(s.key, budget.nodes, budget.min_confidence) for s, budget in zip(states, budgets, strict=True)]
        serial = self._ask("propose", questions)
        for state in states:
            state.asked = serial

        def fetch() -> list[Draft]:
            for state in states:
                state.asked = None
            try:
                with self._lending():
                    sent = self._await(serial, self.drafter_timeout_s) if wait is None else self._fetch(serial, wait)
            except TimeoutError:
                self._unanswered()
                # The drafter goes on from the tokens that it drew. Taking long may depend on them, so the verified
                # tokens would follow another distribution than the one sent with them.
                return [NOTHING if state.certain else _refused(state, TOO_LATE) for state in states]
            return _unpacked(sent, len(states))

        return fetch

    @contextmanager
    def _lending(self) -> Iterator[None]:
        """Lend the target's cores to the child while the target waits in the body, if the last draft took long."""
        start = time.perf_counter()
        self._handled.lend(lent=bool(self._lent_cores) and self._draft_s > LENDING_S)
        try:
            yield
        finally:
            self._handled.lend(lent=False)
            self._draft_s = time.perf_counter() - start

    def _mine(self, state: ProcessState) -> bool:
        """True if the child that runs knows this state."""
        return state.launch == self._launches

    def _with_spans(self, drafts: list[Draft]) -> list[Draft]:
        """Attach to the first draft the spans of work that the child did for several requests at once."""
        if self._spans and drafts:
            drafts = [replace(drafts[0], spans=(*drafts[0].spans, *self._spans)), *drafts[1:]]
            self._spans = []
        return drafts

    def _late(self) -> bool:
        """True while the child still drafts for a round that is over: another question would only wait behind it."""
        self._sort_all()
        awaited = self._awaited()
        return any(serial not in awaited for serial in self._unanswered())

    def _awaited(self) -> set[int | None]:
        """Serials of the questions whose replies will be fetched."""
        return {serial for state in self._states.values() for serial in (state.hidden, state.asked)}

    def _unanswered(self) -> list[int]:
        """Serials of the questions whose replies are due.

        Raises:
            DrafterLost: a reply has been due, without progress of the child, for too long.
        """
        if self._idle_s() >= self.drafter_timeout_s:
            self._child.kill()
            raise DrafterLost(f"it made no progress within {self.drafter_timeout_s:g} s")
        return list(self._open)

    def _overdue_s(self) -> float:
        """Seconds for which a reply has been due and no message has come; 0 if no reply is due."""
        if not self._open:
            return 0.0
        return time.monotonic() - max(self._last_message_s, min(self._open.values()))

    def _idle_s(self) -> float:
        """Seconds for which a reply has been due without a message or progress of the child; 0 if none is due."""
        return min(self._overdue_s(), time.monotonic() - self._handled.progress.get())

    def _ask(self, kind: str, value: object) -> int:
        """Send a question; returns its serial. Replies that were never fetched (Ctrl-C came first) are dropped."""
        self._serial += 1
        awaited = self._awaited()
        self._replies = {serial: reply for serial, reply in self._replies.items() if serial in awaited}
        self._open[self._serial] = time.monotonic()
        self._send((kind, (self._serial, value)))
        return self._serial

    def _send(self, message: Message, arrays: Sequence[memoryview] = ()) -> None:
        dropped: list[int] = []
        try:
            with self._sends:
                while self._dropped:
                    launch, key = self._dropped.popleft()
                    dropped += [key] if launch == self._launches else []
                for one in [("drop", dropped), message] if dropped else [message]:
                    self._sent += 1
                    self._link.send(one, arrays if one is message else ())
        except BlockingIOError as error:
            raise DrafterLost("it takes no messages any more") from error
        except OSError as error:
            raise DrafterLost("its process ended") from error
        if arrays and self._child.poll() is not None:  # a thread sends arrays, and its errors are not seen here
            raise DrafterLost("its process ended")

    def _fetch(self, serial: int, timeout: float) -> Any:
        """Wait for the reply to a question, for at most `timeout` seconds.

        Raises:
            TimeoutError: the reply is not here yet.
            CrossdraftError: the reply is a refusal.
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

    def _await(self, serial: int, patience_s: float) -> Any:
        """Fetch a reply, with no time limit as long as the child makes progress every `patience_s` seconds."""
        while True:
            try:
                return self._fetch(serial, patience_s - self._idle_s())
            except TimeoutError:
                if self._idle_s() >= patience_s:
                    raise

    def _sort_all(self) -> None:
        with suppress(Empty):
            while True:
                self._sort(self._incoming.get_nowait())

    def _sort(self, message: Any) -> None:
        """Store a message of the child until it is asked for."""
        if message is None:
            raise DrafterLost("its process ended")
        self._last_message_s = time.monotonic()
        try:
            kind, (key, spans, body) = message
            self._spans.extend(span for span in spans if isinstance(span, Span))
            self._open.pop(key, None)
            self._replies[key] = (kind, body)
        except (TypeError, ValueError) as error:
            raise DrafterLost("it sent a message that cannot be read") from error

    def _receive(self, incoming: "SimpleQueue[Any]", message: Any) -> None:
        """Pass a token to its callback at once, and queue any other message; runs in the link's thread."""
        match message:
            case ("token", (int(key), int(token))):
                if (on_token := self._on_token.get(key)) is not None:
                    on_token(token)
            case _:
                incoming.put(message)


def _unpacked(sent: Any, count: int) -> list[Draft]:
    """The drafts of a reply, one a request."""
    return drafts_of([unpack_draft(one) for one in sent] if isinstance(sent, list) else sent, count)


def _refused(state: ProcessState, why: str) -> Draft:
    """End drafting for a request; returns an empty draft with the refusal `why`."""
    state.refusal = why
    return replace(NOTHING, refusal=why)
