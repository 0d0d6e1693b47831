"""DraftRunner: runs the drafter for a decode loop; an answer never fails because of its drafter.

The loop calls `start` (the drafter reads the request, and drafts while the prefill runs), `collect` when the target is
at the last piece of its prefill, then `ask` and `commit` in every round, and `end`. A drafter in another process (a
`ProcessDrafter`), or a union of several, is run like any other. A drafter that raises, dies or hangs is lost: its
requests go on with the target alone, and it is restarted, though not too often.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import (
    NO_NEEDS,
    NOTHING,
    Budget,
    Draft,
    Drafter,
    Needs,
    OnToken,
    Proposal,
    VerifyOutput,
    propose_async,
)
from crossdraft.engine.fast.elastic import poll
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.runner.restarts import Restarts
from crossdraft.engine.runner.side_stream import StreamDrafter
from crossdraft.engine.timeline import HIDDEN_DRAFT, READ, Span
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

CLOSING_S = 10.0  # longest wait for the end of a restart under way
State = TypeVar("State")


class DrafterLost(Exception):
    """The drafter died or hangs. The answer goes on with the target alone, and says so."""


class Worker(Protocol):
    """A process in which a drafter, or a part of one, runs; see `ProcessDrafter`."""

    @property
    def alive(self) -> bool:
        """True if the process runs now."""
        ...

    def spare_cores(self) -> tuple[int, ...]:
        """CPU cores of the process, while it has nothing to do; else none."""
        ...

    def stop(self) -> None:
        """Stop the process; `restart` may follow."""
        ...

    def restart(self) -> None:
        """Start the process anew.

        Raises:
            CrossdraftError: it cannot be started.
        """
        ...

    def close(self) -> None:
        """Stop the process for good."""
        ...


@dataclass
class _HiddenWork:
    """Record of a hidden draft made in this process: its mode, its nodes, and the seconds that drafting them took."""

    mode: str
    nodes: int = 0
    draft_s: float = 0.0


@dataclass
class _Slot(Generic[State]):
    """The runner's record of one request."""

    row: RequestState
    request: Request
    work: _HiddenWork
    state: State | None = None
    refusal: str | None = None  # why the drafter does nothing more for it
    until: threading.Event | None = None
    hidden: Proposal | None = None
    read_wait_s: float = 0.0  # seconds that the target waited while the drafter read the request
    unread: tuple[int, ...] = ()  # tokens committed before the drafter reads the request
    read: bool = False  # it is known that the drafter has read the request, as a draft of it came

    def stop(self) -> None:
        """Tell the drafter to end the hidden draft."""
        if self.until is not None:
            self.until.set()


@contextmanager
def refusals_unlogged() -> Iterator[None]:
    """Log no warning when the drafter refuses a request, such as a warm-up; the request's answer still notes it."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class DraftRunner(Generic[State]):
    """Runs one drafter for the requests of a decode loop. To be used by one thread.

    If the drafter raises a CrossdraftError, it refuses the request; the drafter is not lost by that.

    Args:
        drafter: the drafter; `None` = the target is alone.
        hidden: when the draft for the ride-along is made: `before` the prefill, `beside` it (in a thread, with a CUDA
            stream of its own on a GPU, or in the drafter's process), `off` (the drafter reads the request when a draft
            is asked for), or `auto`: `beside` if the drafter has a process or a GPU, else `before` where that pays.
        device: device of the drafter's network; `None` = no GPU.
        workers: processes in which the drafter, or parts of it, run.
        restarts: limit on restarts of a lost drafter; by default it is not restarted.

    `waited_s`: seconds per request that the target waited for the last drafts, without the drafter's reading of
    requests. `absence`: why there is no drafter now, if there should be one.
    """

    def __init__(
        self,
        drafter: Drafter[State] | None,
        hidden: str = "auto",
        device: torch.device | None = None,
        workers: Sequence[Worker] = (),
        restarts: Restarts | None = None,
    ) -> None:
        self._made, self._device, self.workers = drafter, device, tuple(workers)
        self.announced: Needs = NO_NEEDS if drafter is None else drafter.needs  # kept while it is lost
        self.remote = "process" in self.announced.runs_in
        hidden = hidden if self.announced.may_hide else "off"
        hides = self.remote or (device is not None and device.type == "cuda")
        self.hidden = "beside" if hides and hidden == "auto" else hidden
        self._timed = "here" in self.announced.runs_in  # a drafter in another process sends its own times
        self._restarts = restarts or Restarts()
        self.absence: str | None = None
        self.waited_s = 0.0
        self._warned = False  # of a refused request: only the first is logged, and each answer notes its own
        self._slots: dict[int, _Slot[State]] = {}
        self._spans: list[Span] = []
        self._read_s = 0.0
        self._thread: ThreadPoolExecutor | None = None
        self._stream: StreamDrafter[State] | None = None
        self.drafter: Drafter[State] | None = self._fresh()
        self._restarted = False  # true while a restarted drafter waits for `resume`
        self._restarting: threading.Thread | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def _fresh(self) -> Drafter[State] | None:
        """Return the drafter as it was given, or on a CUDA stream of its own to draft beside the prefill on a GPU."""
        made, device = self._made, self._device
        if made is None or self.remote or device is None or device.type != "cuda":
            return made
        if self.hidden == "beside":
            self._stream = StreamDrafter(made, device)
        return self._stream or made

    # -- what the loop asks ------------------------------------------------------------------------------------------

    @property
    def needs(self) -> Needs:
        """Needs of the drafter; none while there is no drafter."""
        return NO_NEEDS if self.drafter is None else self.announced

    @property
    def alive(self) -> bool:
        """True if there is a drafter and all of its workers run now."""
        there = self.drafter is not None or self._restarted
        return there and all(worker.alive for worker in self.workers)

    def spare_cores(self) -> tuple[int, ...]:
        """CPU cores of the drafter's own, while it has nothing to do."""
        if not self.workers or self.drafter is None:
            return ()
        idle = [worker.spare_cores() for worker in self.workers]
        return tuple(sorted({core for cores in idle for core in cores})) if all(idle) else ()

    def note_absence(self, row: RequestState) -> None:
        """Note in a new request why there is no drafter now, if there should be one."""
        if self.absence is not None:
            row.drafter_error = self.absence
            row.notes.append(f"Written without the drafter: {self.absence}.")

    def start(
        self,
        row: RequestState,
        request: Request,
        nodes: int,
        mode: str,
        on_token: OnToken | None = None,
        least: float = 0.0,
    ) -> None:
        """Take up a request and begin its hidden draft of up to `nodes` nodes; `mode` is a hidden mode, not `auto`.

        `least`: see `RequestPlan`.
        """
        if not self.remote and mode != "off":
            request = replace(request, visual_features=None)  # the target's thread makes them, and would wait
        slot = self._slots[row.request_id] = _Slot[State](row, request, _HiddenWork(mode))
        row.drafting = True

        def work() -> None:
            if mode != "off" and (nodes or self.remote):
                self._start_hidden(slot, Budget(nodes, least, on_token=on_token))
            elif self.remote and request.known:
                self._read(slot)  # the drafter reads while the target prefills

        self._guarded([slot], work)

    def collect(self, row: RequestState) -> Draft:
        """Stop hidden drafting, as the target is at its prompt's last piece, and return the draft so far."""
        slot = self._slots[row.request_id]

        def work() -> Draft:
            slot.stop()
            hidden, slot.hidden = slot.hidden, None
            if slot.refusal is not None:
                return _refused(slot)
            (draft,) = self._taken(hidden(), 1) if hidden is not None else [NOTHING]
            if self._stream is not None:
                self._stream.take([draft])
            return draft

        draft, self.waited_s = self._guarded([slot], work)
        slot.read = draft is not None and len(draft.tree) > 0
        return self._unless_refused(draft or NOTHING, slot)

    def hidden_step_s(self, row: RequestState) -> float | None:
        """Seconds per token of a request's hidden draft, where the cost model decides if one is made; else `None`."""
        slot = self._slots.get(row.request_id)
        if slot is None or not row.drafting or slot.request.known or self.hidden != "auto" or not slot.work.nodes:
            return None
        return slot.work.draft_s / slot.work.nodes

    def ask(self, rows: Sequence[RequestState], budgets: Sequence[Budget]) -> Proposal:
        """Begin `Drafter.propose`; the returned function waits for the drafts, one a row, and raises nothing."""
        slots = [self._slots[row.request_id] for row in rows]

        def work() -> tuple[list[bool], Proposal | None, int]:
            able = [self._read(slot) is not None for slot in slots]
            asked = [entry for entry, one in zip(zip(slots, budgets, strict=True), able, strict=True) if one]
            return able, self._propose(asked) if asked else None, len(asked)

        begun, began_s = self._guarded(slots, work)

        def wait() -> list[Draft]:
            drafts: list[Draft] | None = None
            waited_s = 0.0
            if begun is not None:
                able, proposal, count = begun

                def take() -> list[Draft]:
                    made = iter(() if proposal is None else self._timed_drafts(proposal, count, "draft"))
                    return [next(made) if one else _refused(slot) for slot, one in zip(slots, able, strict=True)]

                drafts, waited_s = self._guarded(slots, take)
            self.waited_s = (began_s + waited_s) / max(1, len(rows))
            found = [*zip(drafts or [NOTHING] * len(slots), slots, strict=True)]
            for draft, slot in found:
                slot.read |= not self.remote or len(draft.tree) > 0
            if not any(slot.read for slot in slots):  # another process still reads: that says nothing of its drafts
                for slot in slots:
                    slot.read_wait_s += self.waited_s
                self.waited_s = 0.0
            return [self._unless_refused(draft, slot) for draft, slot in found]

        return wait

    def commit(self, rows: Sequence[RequestState], outputs: Sequence[VerifyOutput]) -> None:
        """Commit outputs to the drafter; an error refuses all these rows, as it is unknown which were committed."""
        slots = [self._slots[row.request_id] for row in rows]
        if slots:
            self._guarded(slots, lambda: self._commit(slots, outputs))

    def end(self, row: RequestState) -> float | None:
        """End a request; returns the seconds that the target waited for the drafter to read it, if the drafter did."""
        if row.visual_features is not None:
            row.visual_features.cancel()
        slot = self._slots.get(row.request_id)
        if slot is None:
            return None
        read = row.drafting and slot.state is not None
        self._guarded([slot], lambda: self._end(slot))
        self._slots.pop(row.request_id, None)
        return slot.read_wait_s if read else None

    # -- when it is lost ---------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Use the drafter again, if it was restarted."""
        with self._lock:
            if self._restarted:
                self.drafter, self._restarted, self.absence = self._fresh(), False, None

    def lose(self, why: str) -> None:
        """Give up the drafter: a thread stops it, and restarts it after a delay if `restarts` allows any."""
        lost, self.drafter = self.drafter, None
        if lost is None:
            return
        states = [slot.state for slot in self._slots.values() if slot.state is not None]
        for slot in self._slots.values():
            slot.stop()
            slot.state = slot.hidden = None
            self._end_drafting(slot, why, "was lost")
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)
        if not self._restarts.most:
            self._close_workers()
            self._miss(f"it was lost ({why}), and is not restarted")
            return
        delay, absence = self._restarts.lost(f"it was lost ({why})")
        self._miss(absence)
        self._restarting = threading.Thread(
            target=self._restart, args=(lost, states, delay), name="drafter-restart", daemon=True
        )
        self._restarting.start()

    def forget(self) -> None:
        """Drop the records of all requests, whose loop has failed and will not end them."""
        self._slots.clear()

    def _miss(self, absence: str) -> None:
        """Note and log why there is no drafter now."""
        self.absence = absence
        log.warning("Answers are written without the drafter: %s.", absence)

    def _restart(self, lost: Drafter[State], states: list[State], delay: float) -> None:
        for worker in self.workers:
            _ended(worker.stop)  # it may hang, and hold cores and memory
        while True:
            if self._closed.wait(delay):
                self._close_workers()
                return
            try:
                for worker in self.workers:
                    worker.restart()
                break
            except Exception as error:
                if self._closed.is_set():  # `close` has ended what was being started
                    return
                log.exception("The drafter could not be restarted.")
                delay, absence = self._restarts.lost(f"it was lost, could not be restarted ({error})")
                self._miss(absence)
        _ended(lambda: lost.end(states))  # it has failed already
        with self._lock:
            if not self._closed.is_set():
                self._restarted = True
                log.info("The drafter was restarted.")
                return
        self._close_workers()

    def close(self) -> None:
        """Stop the drafter; it is not restarted any more."""
        with self._lock:
            self._closed.set()
            self.drafter, self._restarted = None, False
        for slot in self._slots.values():
            slot.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
        self._close_workers()  # this also ends a process that is still loading
        if self._restarting is not None:
            self._restarting.join(CLOSING_S)

    def _close_workers(self) -> None:
        for worker in self.workers:
            _ended(worker.close)

    def _guarded(self, slots: Sequence[_Slot[State]], work: Callable[[], Any]) -> tuple[Any, float]:
        """Run a call of the drafter; the drafter is lost if the call fails.

        Returns:
            the call's result, `None` without a drafter; and the seconds waited, without the drafter's reading.
        """
        if self.drafter is None or not any(slot.row.drafting for slot in slots):
            return None, 0.0
        start = time.perf_counter()
        try:
            result = work()
        except Exception as error:
            why = str(error).rstrip(".")
            if not isinstance(error, DrafterLost | CrossdraftError):
                log.exception("The drafter failed.")
                why = f"{type(error).__name__}: {why}"
            self.lose(why)
            return None, 0.0
        end = time.perf_counter()
        poll()
        spans, read_s = self._spans, min(self._read_s, end - start)
        self._spans, self._read_s = [], 0.0
        for slot in slots:
            slot.row.ledger.waited(start, end, spans)
            slot.read_wait_s += read_s / len(slots)
        return result, max(0.0, time.perf_counter() - start - read_s)

    def _unless_refused(self, draft: Draft, slot: _Slot[State]) -> Draft:
        """Return a draft and add its notes to the answer; a refusal ends drafting for the request."""
        if not slot.row.drafting:
            return NOTHING
        row = slot.row
        row.notes.extend(note for note in draft.notes if note not in row.notes)
        if draft.refusal is None:
            return draft
        if not self._warned and log.isEnabledFor(logging.WARNING):
            self._warned = True
            log.warning("The drafter gave up on a request; the target answers such alone: %s", draft.refusal)
        self._guarded([slot], lambda: self._end(slot))
        self._end_drafting(slot, draft.refusal, "gave up")
        return replace(NOTHING, refusal=draft.refusal)

    def _end_drafting(self, slot: _Slot[State], why: str, what: str) -> None:
        """End drafting for this request, and note why."""
        if slot.row.drafting:
            slot.row.drafting, slot.row.drafter_error = False, why.rstrip(".")
            slot.row.notes.append(f"The drafter {what} ({slot.row.drafter_error}); the target went on alone.")

    # -- the drafter's own calls -------------------------------------------------------------------------------------

    def _there(self) -> Drafter[State]:
        """Return the drafter.

        Raises:
            DrafterLost: it was lost meanwhile.
        """
        if (drafter := self.drafter) is None:
            raise DrafterLost("it was lost")
        return drafter

    def _start_hidden(self, slot: _Slot[State], budget: Budget) -> None:
        """Begin the hidden draft."""
        if slot.work.mode == "before" and not self.remote:
            draft = self._write_hidden(slot, budget)
            slot.hidden = lambda: [draft]
            return
        slot.until = threading.Event()
        budget = replace(budget, until=slot.until)
        if not self.remote:
            self._thread = self._thread or ThreadPoolExecutor(1, "drafter")
            made = self._thread.submit(self._concurrent, slot, budget, self._stream and self._stream.point())
            slot.hidden = lambda: [made.result()]
        elif self._read(slot) is not None:
            slot.hidden = self._propose([(slot, budget)])

    def _concurrent(self, slot: _Slot[State], budget: Budget, point: "torch.cuda.Event | None") -> Draft:
        """Run `_write_hidden` in the drafter's thread; on a GPU on the drafter's stream, after the event `point`."""
        if self._stream is None or point is None:
            return self._write_hidden(slot, budget)
        with self._stream.concurrent(point):
            return self._write_hidden(slot, budget)

    def _write_hidden(self, slot: _Slot[State], budget: Budget) -> Draft:
        """Read the request and write the hidden draft."""
        if self._read(slot) is None:
            return _refused(slot)
        read = time.perf_counter()
        draft = self._timed_drafts(self._propose([(slot, budget)]), 1, HIDDEN_DRAFT)[0]
        slot.work.nodes, slot.work.draft_s = len(draft.tree), time.perf_counter() - read
        return draft

    def _read(self, slot: _Slot[State]) -> State | None:
        """Return the drafter's state of a request, which the drafter reads now if it has not; `None` if refused."""
        if slot.state is None and slot.refusal is None:
            start = time.perf_counter()
            try:
                slot.state = self._there().begin([slot.request])[0]
                if slot.unread:
                    self._there().commit([slot.state], [VerifyOutput((), slot.unread)])
            except CrossdraftError as error:
                slot.refusal = str(error)
            except DrafterLost:
                raise
            except Exception as error:
                log.exception("A drafter could not read a request.")
                slot.refusal = f"{type(error).__name__}: {error}"
            self._record(READ, start)
            self._read_s += time.perf_counter() - start
        return slot.state if slot.refusal is None else None

    def _propose(self, asked: Sequence[tuple[_Slot[State], Budget]]) -> Proposal:
        """Begin `Drafter.propose` for requests that were read; after an error each request is asked alone."""
        states = [slot.state for slot, _ in asked]
        try:
            begun = propose_async(self._there(), states, [budget for _, budget in asked])
        except CrossdraftError as error:
            return self._propose_each(asked, error)

        def wait() -> list[Draft]:
            try:
                return begun()
            except CrossdraftError as error:
                return self._propose_each(asked, error)()

        return wait

    def _propose_each(self, asked: Sequence[tuple[_Slot[State], Budget]], error: CrossdraftError) -> Proposal:
        """Ask for each request alone, to find the one that caused an error; a single request is refused with it."""
        if len(asked) == 1:
            asked[0][0].refusal = str(error)
            return lambda: [_refused(slot) for slot, _ in asked]
        proposals = [self._propose([one]) for one in asked]
        return lambda: [draft for proposal in proposals for draft in proposal()]

    def _commit(self, slots: Sequence[_Slot[State]], outputs: Sequence[VerifyOutput]) -> None:
        needs, committed = self.announced, list[tuple[State, VerifyOutput]]()
        for slot, output in zip(slots, outputs, strict=True):
            if slot.state is None and needs.nothing and not (needs.learns or needs.successors):
                slot.unread += output.tokens  # it reads the request when a draft is asked for
            elif (state := self._read(slot)) is not None:
                committed.append((state, output))
        start = time.perf_counter()
        try:
            if committed:
                self._there().commit([state for state, _ in committed], [output for _, output in committed])
        except CrossdraftError as error:
            for slot in slots:
                slot.refusal = slot.refusal or str(error)
        self._record("resync", start)

    def _end(self, slot: _Slot[State]) -> None:
        slot.stop()
        try:
            hidden, slot.hidden = slot.hidden, None
            if hidden is not None and not self.remote:
                hidden()  # wait until its thread is done with the state
        finally:
            state, slot.state = slot.state, None
            try:
                if state is not None:
                    self._there().end([state])
            except CrossdraftError as error:
                log.warning("A drafter could not end a request: %s", error)

    def _timed_drafts(self, made: Proposal, count: int, name: str) -> list[Draft]:
        start = time.perf_counter()
        drafts = self._taken(made(), count)
        self._record(name, start, sum(len(draft.tree) for draft in drafts))
        return drafts

    def _taken(self, made: Any, count: int) -> list[Draft]:
        """Check that one draft a request came, and take its spans; the trees are checked later."""
        drafts = drafts_of(made, count)
        for draft in drafts:
            self._spans.extend(draft.spans)
        return drafts

    def _record(self, name: str, start: float, tokens: int = 0) -> None:
        if self._timed:
            self._spans.append(Span("drafter", name, start, time.perf_counter(), tokens))


def _refused(slot: _Slot[Any]) -> Draft:
    """The empty draft of a request that gets no drafts any more."""
    return replace(NOTHING, refusal=slot.refusal)


def _ended(end: Callable[[], None]) -> None:
    try:
        end()
    except Exception:  # the drafter is given up anyway
        log.exception("A drafter could not be closed properly.")
