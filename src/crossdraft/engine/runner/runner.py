"""DraftRunner: runs a drafter for the decode loop, request by request.

The loop says `start` (read the request, and draft for the prefill to hide it), `collect` when the target is at the last
piece of its prefill, then `ask` and `commit` round by round. Where the drafter works is the drafter's own business:
a `ProcessDrafter`, or a union of several, is run like any other.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch

from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Proposal, VerifyOutput, propose_async
from crossdraft.engine.request import Request
from crossdraft.engine.runner.side_stream import StreamDrafter
from crossdraft.engine.timeline import Span
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

HIDDEN_MODES = ("auto", "before", "beside", "off")

OnToken = Callable[[int], None]
State = TypeVar("State")


class DrafterLost(Exception):
    """The drafter died or hangs. The answer goes on with the target alone, and says so."""


class Worker(Protocol):
    """A worker that a drafter uses besides this process; see `ProcessDrafter`."""

    @property
    def alive(self) -> bool:
        """True if it runs now."""
        ...

    def spare_cores(self) -> tuple[int, ...]:
        """Its CPU cores, while it has nothing to do."""
        ...

    def stop(self) -> None:
        """Stop it until it is restarted."""
        ...

    def restart(self) -> None:
        """Begin anew, if it was lost.

        Raises:
            CrossdraftError: it cannot be started.
        """
        ...

    def close(self) -> None:
        """Stop it."""
        ...


@dataclass
class HiddenWork:
    """Time and nodes of a hidden draft in this process.

    Args:
        mode: when it was made.
        read_s, draft_s: seconds of reading the request and of drafting.
        nodes: that were drafted.
        prefill_s: seconds from the return of `start` to `collect`.
        wall_s: seconds from `start` until the draft was handed over.
    """

    mode: str
    read_s: float = 0.0
    draft_s: float = 0.0
    nodes: int = 0
    prefill_s: float = 0.0
    wall_s: float = 0.0


@dataclass
class DraftSlot(Generic[State]):
    """A drafter's record of one request."""

    request: Request
    began: float
    work: HiddenWork
    returned: float = 0.0
    state: State | None = None
    refusal: str | None = None  # why the drafter does nothing more for it
    until: threading.Event | None = None
    hidden: Proposal | None = None

    def stop(self) -> None:
        """Have the hidden draft handed over."""
        if self.until is not None:
            self.until.set()


class DraftRunner(Generic[State]):
    """One drafter, and the requests that it drafts for. To be used by one thread.

    What it raises as a CrossdraftError, whenever that is, is its refusal of a request: the drafter is not lost.

    Args:
        drafter: whatever drafts.
        hidden: when the draft for the ride-along is made: `before` the prefill, `beside` it (in a thread, on a GPU on a
            CUDA stream of its own; in its own process anyway), `off` (the drafter reads the request after the prefill),
            or `auto`: as the cost model finds cheapest. On one shared device none of them is free.
        device: where the drafter's network is; `None` = on no GPU.
        workers: the processes in which parts of it run.
    """

    def __init__(
        self,
        drafter: Drafter[State],
        hidden: str = "auto",
        device: torch.device | None = None,
        workers: Sequence[Worker] = (),
    ) -> None:
        self.drafter = self._unwrapped = drafter
        self._device = device
        self.needs = drafter.needs
        self.workers = tuple(workers)
        self.remote = "process" in self.needs.runs_in
        if not self.needs.may_hide:
            hidden = "off"
        self.hidden = "beside" if self.remote and hidden == "auto" else hidden
        self._stream: StreamDrafter[State] | None = None
        if device is not None and device.type == "cuda" and not self.remote and self.hidden in ("auto", "beside"):
            self.drafter = self._stream = StreamDrafter(drafter, device)
        self._timed = "here" in self.needs.runs_in  # what runs elsewhere tells its own times
        self._slots: dict[int, DraftSlot[State]] = {}
        self._spans: list[Span] = []
        self._read_s = 0.0
        self._thread: ThreadPoolExecutor | None = None

    def start(self, request_id: int, request: Request, nodes: int, mode: str, on_token: OnToken | None = None) -> None:
        """Take up a request; draft up to `nodes` nodes for the ride-along, in a hidden mode other than `auto`."""
        began = time.perf_counter()
        if not self.remote and mode != "off":
            request = replace(request, visual_features=None)  # it could not wait for them in the target's own thread
        slot = self._slots[request_id] = DraftSlot[State](request, began, HiddenWork(mode))
        if mode != "off" and (nodes or self.remote):
            self._start(slot, Budget(nodes, on_token=on_token))
        elif self.remote and request.known:
            self._begun(slot)  # it reads while the target does, and drafts for the first round
        slot.returned = time.perf_counter()

    def _start(self, slot: DraftSlot[State], budget: Budget) -> None:
        """Begin the hidden draft."""
        if slot.work.mode == "before" and not self.remote:
            draft = self._first(slot, budget)
            slot.hidden = lambda: [draft]
            return
        slot.until = threading.Event()
        budget = replace(budget, until=slot.until)
        if not self.remote:
            self._thread = self._thread or ThreadPoolExecutor(1, "drafter")
            made = self._thread.submit(self._concurrent, slot, budget, self._stream and self._stream.point())
            slot.hidden = lambda: [made.result()]
        elif self._begun(slot) is not None:
            slot.hidden = self._propose([(slot, budget)])

    def collect(self, request_id: int) -> Draft:
        """The target is at its last piece: stop, and hand over what there is, or why the request is refused."""
        slot = self._slots[request_id]
        slot.work.prefill_s = time.perf_counter() - slot.returned
        slot.stop()
        hidden, slot.hidden = slot.hidden, None
        if slot.refusal is not None:
            return _refused(slot)
        (draft,) = self._taken(hidden(), 1) if hidden is not None else [NOTHING]
        if self._stream is not None:
            self._stream.take([draft])
        slot.work.wall_s = time.perf_counter() - slot.began
        return draft

    def hidden_work(self, request_id: int) -> HiddenWork:
        """Return the record of the hidden draft; times are known where it was made in this process."""
        return self._slots[request_id].work

    def ask(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> Proposal:
        """Begin `Drafter.propose`; what is returned waits for the drafts, some of which may be refusals."""
        slots = [self._slots[request_id] for request_id in request_ids]
        able = [self._begun(slot) is not None for slot in slots]
        asked = [entry for entry, one in zip(zip(slots, budgets, strict=True), able, strict=True) if one]
        begun = self._propose(asked) if asked else None

        def wait() -> list[Draft]:
            made = iter(() if begun is None else self._timed_drafts(begun, len(asked), "draft"))
            return [next(made) if one else _refused(slot) for slot, one in zip(slots, able, strict=True)]

        return wait

    def _propose(self, asked: Sequence[tuple[DraftSlot[State], Budget]]) -> Proposal:
        """`Drafter.propose` for requests that were read; if that fails, for one after the other."""
        states = [slot.state for slot, _ in asked]
        try:
            begun = propose_async(self.drafter, states, [budget for _, budget in asked])
        except CrossdraftError as error:
            return self._propose_each(asked, error)

        def wait() -> list[Draft]:
            try:
                return begun()
            except CrossdraftError as error:
                return self._propose_each(asked, error)()

        return wait

    def _propose_each(self, asked: Sequence[tuple[DraftSlot[State], Budget]], error: CrossdraftError) -> Proposal:
        """`_propose` for each alone, after an error that is one request's; whose it is, if there is but one."""
        if len(asked) == 1:
            asked[0][0].refusal = str(error)
            return lambda: [_refused(slot) for slot, _ in asked]
        proposals = [self._propose([one]) for one in asked]
        return lambda: [draft for proposal in proposals for draft in proposal()]

    def commit(self, request_ids: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        """See `Drafter.commit`. What it refuses of several, it refuses of all: nobody knows which it has committed."""
        slots = [self._slots[request_id] for request_id in request_ids]
        states = [self._begun(slot) for slot in slots]
        committed = [(state, output) for state, output in zip(states, outputs, strict=True) if state is not None]
        start = time.perf_counter()
        try:
            if committed:
                self.drafter.commit([state for state, _ in committed], [output for _, output in committed])
        except CrossdraftError as error:
            for slot in slots:
                slot.refusal = slot.refusal or str(error)
        self._record("resync", start)

    def end(self, request_ids: Sequence[int]) -> None:
        """See `Drafter.end`; hidden drafting is stopped."""
        for request_id in request_ids:
            if request_id in self._slots:
                self._end(self._slots.pop(request_id))

    def _end(self, slot: DraftSlot[State]) -> None:
        slot.stop()
        try:
            hidden, slot.hidden = slot.hidden, None
            if hidden is not None and not self.remote:
                hidden()  # its thread is done with the state
        finally:
            try:
                if slot.state is not None:
                    self.drafter.end([slot.state])
            except CrossdraftError as error:
                log.warning("A drafter could not end a request: %s", error)

    def drain(self) -> tuple[list[Span], float]:
        """Since the last call: spans of the drafter's lane, and seconds in which it read requests in this process."""
        spans, read_s = self._spans, self._read_s
        self._spans, self._read_s = [], 0.0
        return spans, read_s

    @property
    def alive(self) -> bool:
        """True if all of its workers run now."""
        return all(worker.alive for worker in self.workers)

    def spare_cores(self) -> tuple[int, ...]:
        """CPU cores of the drafter's own, while it has nothing to do."""
        idle = [worker.spare_cores() for worker in self.workers]
        return tuple(sorted({core for cores in idle for core in cores})) if all(idle) else ()

    def stop(self) -> None:
        """Stop whatever runs; `restarted` may follow."""
        for slot in list(self._slots.values()):
            slot.stop()
        for worker in self.workers:
            worker.stop()

    def restarted(self) -> Self:
        """Another runner of the drafter, with no request; its workers are started anew, this runner is over.

        Raises:
            CrossdraftError: a worker cannot be started.
        """
        states = [slot.state for slot in self._slots.values() if slot.state is not None]
        self._slots.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        for worker in self.workers:
            worker.restart()
        try:
            self.drafter.end(states)
        except Exception:  # it has failed already
            log.exception("A drafter that failed could not free what it held.")
        return type(self)(self._unwrapped, self.hidden, self._device, self.workers)

    def close(self) -> None:
        """Stop whatever runs, for good."""
        for slot in list(self._slots.values()):
            slot.stop()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        for worker in self.workers:
            worker.close()

    def _concurrent(self, slot: DraftSlot[State], budget: Budget, point: "torch.cuda.Event | None") -> Draft:
        """`_first` in the drafter's thread; on a GPU after `point`, on the drafter's stream."""
        if self._stream is None or point is None:
            return self._first(slot, budget)
        with self._stream.concurrent(point):
            return self._first(slot, budget)

    def _first(self, slot: DraftSlot[State], budget: Budget) -> Draft:
        """Read the request and write the hidden draft."""
        start = time.perf_counter()
        if self._begun(slot) is None:
            return _refused(slot)
        read = time.perf_counter()
        draft = self._timed_drafts(self._propose([(slot, budget)]), 1, "hidden draft")[0]
        work = slot.work
        work.read_s, work.draft_s, work.nodes = read - start, time.perf_counter() - read, len(draft.tree)
        return draft

    def _begun(self, slot: DraftSlot[State]) -> State | None:
        """The drafter's state; if it has none, the request is read now. `None` if it is refused."""
        if slot.state is None and slot.refusal is None:
            start = time.perf_counter()
            try:
                slot.state = self.drafter.begin([slot.request])[0]
            except CrossdraftError as error:
                slot.refusal = str(error)
            except DrafterLost:
                raise
            except Exception as error:
                log.exception("A drafter could not read a request.")
                slot.refusal = f"{type(error).__name__}: {error}"
            self._record("read", start)
            self._read_s += time.perf_counter() - start
        return slot.state if slot.refusal is None else None

    def _timed_drafts(self, made: Proposal, count: int, name: str) -> list[Draft]:
        start = time.perf_counter()
        drafts = self._taken(made(), count)
        self._record(name, start, sum(len(draft.tree) for draft in drafts))
        return drafts

    def _taken(self, made: Any, count: int) -> list[Draft]:
        """Collect the drafts that came, one a request; their trees are not checked yet."""
        drafts = drafts_of(made, count)
        for draft in drafts:
            self._spans.extend(draft.spans)
        return drafts

    def _record(self, name: str, start: float, tokens: int = 0) -> None:
        if self._timed:
            self._spans.append(Span("drafter", name, start, time.perf_counter(), tokens))


def _refused(slot: DraftSlot[State]) -> Draft:
    """There is no draft for this request, nor will be."""
    return replace(NOTHING, refusal=slot.refusal)
