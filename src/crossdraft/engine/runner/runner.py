"""Where a drafter runs: in this thread, in a thread beside it, or in a process of its own.

The loop speaks to all of them in the same words: `start` a request (reading it, and drafting for the prefill to hide
it), `collect` that first draft when the target is at the last piece of its prefill, then `propose` and `commit` round
by round. The stop signal of hidden drafting is that event, never a fixed count.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from crossdraft.engine.checks import drafts_of
from crossdraft.engine.cost import CostModel
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.side_stream import StreamDrafter
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

NOTHING = Draft(DraftTree.empty())
HIDDEN_MODES = ("auto", "before", "beside", "off")

OnToken = Callable[[int], None]


class DrafterLost(Exception):
    """The drafter died or hangs. The answer goes on with the target alone, and says so."""


class Placement(Protocol):
    """A drafter, wherever it runs. Requests are known by the ticket that the loop gave them."""

    needs: Needs

    def start(self, request_id: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        """Take up a request; draft up to `nodes` nodes for the ride-along if the placement hides drafting."""
        ...

    def see(self, request_id: int, features: Tensor | None) -> None:
        """What the target sees, [N, E], for a drafter that asks for it (`Needs.visual`); `None` if it cannot be had."""
        ...

    def collect(self, request_id: int) -> Draft:
        """The target is at its last piece: stop, hand over what there is, or why the request cannot be read."""
        ...

    def propose(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        """See `Drafter.propose`."""
        ...

    def ready(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        """As `propose`, but nobody is waited for: nothing is a valid answer."""
        ...

    def commit(self, request_ids: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        """See `Drafter.commit`."""
        ...

    def end(self, request_ids: Sequence[int]) -> None:
        """See `Drafter.end`."""
        ...

    def drain(self) -> list[Span]:
        """Spans of the drafter's lane since the last call."""
        ...

    def spare_cores(self) -> tuple[int, ...]:
        """CPU cores of the drafter's own, while it has nothing to do; see `cores`."""
        ...

    def close(self) -> None:
        """Stop whatever runs."""
        ...

    def restarted(self) -> Self:
        """A drafter such as this one was when it was new; this one is closed.

        Raises:
            CrossdraftError: it cannot be started.
        """
        ...


State = TypeVar("State")


@dataclass
class Held(Generic[State]):
    """What the placement keeps of one request."""

    request: Request
    state: State | None = None
    refusal: str | None = None  # why the drafter cannot read it
    first: "Future[Draft] | None" = None
    stop: threading.Event | None = None
    undrawn: State | None = None  # of a sampled answer, before anything was drawn; see `Ahead.missed`


class Inline(Generic[State]):
    """The drafter in this process.

    `hidden` says when the draft for the ride-along is made: `before` the prefill, `beside` it in a thread (and, on a
    GPU, on a CUDA stream of its own), `off` (the drafter reads the request after the prefill), or `auto`: as the cost
    model finds cheapest from the times measured so far. On one shared device none of them is free.

    Args:
        drafter, cost, hidden: see above.
        device: where the drafter's network is; `None` = on no GPU.
    """

    def __init__(
        self, drafter: Drafter[State], cost: CostModel, hidden: str = "auto", device: torch.device | None = None
    ) -> None:
        self.drafter = drafter
        self.needs = drafter.needs
        self.cost = cost
        self.hidden = hidden if drafter.needs.nothing else "off"
        self._stream: StreamDrafter[State] | None = None
        if device is not None and device.type == "cuda" and self.hidden in ("auto", "beside"):
            self.drafter = self._stream = StreamDrafter(drafter, device)
        self._held: dict[int, Held[State]] = {}
        self._spans: list[Span] = []
        self._thread: ThreadPoolExecutor | None = None

    def start(self, request_id: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        held = self._held[request_id] = Held[State](request)
        mode = self.cost.hiding(nodes) if self.hidden == "auto" else self.hidden
        if mode == "off" or nodes == 0:
            return
        if mode == "before":
            self.start_until(request_id, request, Budget(nodes, on_token=on_token))
        else:
            held.stop = threading.Event()
            self._thread = self._thread or ThreadPoolExecutor(1, "drafter")
            budget = Budget(nodes, stop=held.stop.is_set, on_token=on_token)
            held.first = self._thread.submit(self._beside, held, budget, self._stream and self._stream.point())

    def start_until(self, request_id: int, request: Request, budget: Budget) -> None:
        """Read the request and draft at once, within a budget that may carry a stop signal."""
        held = self._held[request_id] = Held[State](request)
        held.first = Future()
        held.first.set_result(self._first(held, budget))

    def see(self, request_id: int, features: Tensor | None) -> None:
        """Nobody in this process asks for it: who is beside the target can see for itself."""

    def collect(self, request_id: int) -> Draft:
        held = self._held[request_id]
        if held.stop is not None:
            held.stop.set()
        draft = held.first.result() if held.first is not None else NOTHING
        if self._stream is not None:
            self._stream.take([draft])
        return draft

    def propose(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        asked = zip(request_ids, budgets, strict=True)
        able = [(t, state, b) for t, b in asked if (state := self._state(t)) is not None]
        made = self._draft([state for _, state, _ in able], [b for *_, b in able], "draft") if able else ()
        drafts = {t: draft for (t, *_), draft in zip(able, made, strict=True)}
        refused = {t: replace(NOTHING, refusal=self._held[t].refusal) for t in request_ids if t not in drafts}
        return [drafts[t] if t in drafts else refused[t] for t in request_ids]

    def ready(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose(request_ids, budgets)  # in this thread there is nobody to wait for

    def commit(self, request_ids: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        told = [(self._state(t), v) for t, v in zip(request_ids, outputs, strict=True)]
        able = [(state, output) for state, output in told if state is not None]
        start = time.perf_counter()
        if able:
            self.drafter.commit([state for state, _ in able], [output for _, output in able])
        self._record("resync", start)

    def end(self, request_ids: Sequence[int]) -> None:
        held = [self._held.pop(request_id) for request_id in request_ids if request_id in self._held]
        self.drafter.end([entry.state for entry in held if entry.state is not None])

    def drain(self) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans

    def spare_cores(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        for held in self._held.values():
            if held.stop is not None:
                held.stop.set()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def restarted(self) -> Self:
        states = [held.state for held in self._held.values() if held.state is not None]
        self._held.clear()
        try:
            self.drafter.end(states)
        except Exception:  # it has failed already
            log.exception("A drafter that failed could not free what it held.")
        return self

    def _beside(self, held: Held[State], budget: Budget, point: "torch.cuda.Event | None") -> Draft:
        """`_first` in the drafter's thread; on a GPU behind `point`, on the drafter's stream."""
        if self._stream is None or point is None:
            return self._first(held, budget)
        with self._stream.beside(point):
            return self._first(held, budget)

    def _first(self, held: Held[State], budget: Budget) -> Draft:
        """Read the request and write the hidden draft."""
        state = self._begun(held)
        if state is None:
            return replace(NOTHING, refusal=held.refusal)
        return self._draft([state], [budget], "hidden draft")[0]

    def _begun(self, held: Held[State]) -> State | None:
        """The drafter's state; if it has none, the request is read now. `None` if it cannot be read."""
        if held.state is None and held.refusal is None:
            start = time.perf_counter()
            try:
                held.state = self.drafter.begin([held.request])[0]
            except CrossdraftError as error:
                held.refusal = str(error)
            except Exception as error:
                log.exception("A drafter could not read a request.")
                held.refusal = f"{type(error).__name__}: {error}"
            self._record("read", start)
        return held.state

    def _state(self, request_id: int) -> State | None:
        return self._begun(self._held[request_id])

    def _draft(self, states: Sequence[State], budgets: Sequence[Budget], name: str) -> Sequence[Draft]:
        """Have the drafter draft; what it sends is not checked yet."""
        start = time.perf_counter()
        made = drafts_of(self.drafter.propose(states, budgets), len(states))
        self._record(name, start, sum(len(draft.tree) for draft in made))
        return made

    def _record(self, name: str, start: float, tokens: int = 0) -> None:
        self._spans.append(Span("drafter", name, start, time.perf_counter(), tokens))
