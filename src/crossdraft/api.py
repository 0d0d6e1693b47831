"""The public surface: load a pair, ask it questions.

engine = Engine.load("reference")
answer = engine.generate(Request(video="clip.mp4", events="clip.h5", prompt="What is ahead?"))
for piece in engine.stream(request): ...
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, overload

from crossdraft.engine.ahead import POLICIES, policy_for
from crossdraft.engine.cost import CostModel
from crossdraft.engine.decode import HIDDEN_NODES, ROUND_NODES, Decoder
from crossdraft.engine.devices import resolve
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.pinning import pin
from crossdraft.engine.placement import HIDDEN_MODES, Inline, Placement
from crossdraft.engine.process import Process
from crossdraft.engine.request import Answer, Piece, Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft.methods import Place, read_spec
from crossdraft.placing import ahead_in, place_drafter

PLACEMENTS = ("inline", "process")


@dataclass(frozen=True)
class Options:
    """How a pair runs. Without a lossy rule every combination gives the same tokens (sampled: the same distribution).

    Args:
        placement: `inline` (this process) or `process` (a process of its own).
        ahead: for `process`, what the drafter does while the target verifies: `off` (nothing), `pipespec`, `pearl` or
            `ssd` (see `engine.ahead`); `auto` is `ssd` where the two share no core and no device, else `off`.
        hidden: for `inline`, when the hidden draft is made: `auto`, `before`, `beside` or `off`.
        device, dtype: of the target; default CUDA and bfloat16 if there is a GPU, else CPU and float32.
        draft_device, draft_dtype: of the drafter; default the target's. If that is not given either, bfloat16 also on
            a CPU that multiplies it itself: what is drafted need not be as exact as what is said.
        target_cores, draft_cores: CPU cores that each may use; default all, for a drafter in a process of its own
            those that `target_cores` leaves.
        max_batch: requests that share a pass.
        nodes, hidden_nodes: most nodes drafted per round and for the ride-along.
        adaptive: let measured times and acceptances set the budget of each round.
        rule: acceptance rule by name, with settings where it has any (`typical:eps=0.05`); default the exact one. Only
            a lossy rule changes answers, and their `stats` name it; see docs/rules.md.
    """

    placement: str = "inline"
    ahead: str = "auto"
    hidden: str = "auto"
    device: str | None = None
    dtype: str | None = None
    draft_device: str | None = None
    draft_dtype: str | None = None
    target_cores: tuple[int, ...] | None = None
    draft_cores: tuple[int, ...] | None = None
    max_batch: int = 1
    nodes: int = ROUND_NODES
    hidden_nodes: int = HIDDEN_NODES
    adaptive: bool = True
    rule: str | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("placement", self.placement, PLACEMENTS),
            ("ahead", self.ahead, ("auto", *POLICIES)),
            ("hidden", self.hidden, HIDDEN_MODES),
        ):
            if value not in known:
                raise CrossdraftError(f"Unknown {name} '{value}'; choose one of {', '.join(known)}.")
        for name, count in (
            ("max_batch", self.max_batch),
            ("nodes", self.nodes),
            ("hidden_nodes", self.hidden_nodes),
        ):
            if count < 1:
                raise CrossdraftError(f"{name} is {count}; it must be at least 1.")
        for name, cores in (("target_cores", self.target_cores), ("draft_cores", self.draft_cores)):
            absent = sorted(set(cores or ()) - os.sched_getaffinity(0))
            if absent:
                allowed = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
                raise CrossdraftError(
                    f"{name} names core {absent[0]}, but this process may use only {allowed}."
                )


class Engine:
    """A target and, if there is one, its drafter. Use as a context manager, or `close` it."""

    def __init__(self, target: Target, drafter: Placement | None, options: Options, cost: CostModel) -> None:
        self.target = target
        self.drafter = drafter
        self.options = options
        self.cost = cost
        self.unpin: Callable[[], None] = lambda: None

    @classmethod
    def load(
        cls, target: str = "reference", drafter: str | None = "event", options: Options | None = None
    ) -> Self:
        """Load a pair.

        Args:
            target: `reference`, or the folder of a Hugging Face checkpoint of a supported class.
            drafter: a spec such as `event`, `memory` or `union:event,memory` (see `methods.METHODS`), the folder of an
                EventGPT, or `None` for the target alone.
            options: see `Options`.

        Raises:
            CrossdraftError: a folder lacks something, shapes or keys differ, or the vocabularies do.
        """
        options = options or Options()
        allowed, restore = os.sched_getaffinity(0), pin(options.target_cores)
        try:
            engine = cls._load(target, drafter, options, tuple(sorted(allowed)))
        except BaseException:
            restore()
            raise
        engine.unpin = restore
        return engine

    @classmethod
    def _load(cls, target: str, drafter: str | None, options: Options, allowed: tuple[int, ...]) -> Self:
        loaded = load_target(target, options.device, options.dtype)
        cost = CostModel()
        if drafter is None:
            return cls(loaded, None, options, cost)
        place = Place(
            target,
            options.draft_device or options.device,
            options.draft_dtype or options.dtype,
            loaded.vocab_size,
            tuple(sorted(loaded.eos)),
            tuple(sorted(loaded.reserved)),
        )
        left = tuple(core for core in allowed if core not in (options.target_cores or ())) or allowed
        cores = options.draft_cores or (None if options.target_cores is None else left)

        def apart(factory: "partial[Drafter[Any]]", *, role: str) -> Placement:
            usual = _ahead(options, cores, loaded.device.type)
            return Process(factory, cores, ahead=ahead_in(role, usual))

        placed = place_drafter(
            read_spec(drafter),
            place,
            loaded,
            lambda drafter: Inline(
                drafter, cost, options.hidden, resolve(options.draft_device or loaded.device)
            ),
            apart if options.placement == "process" else None,
        )
        return cls(loaded, placed, options, cost)

    @overload
    def generate(self, requests: Request) -> Answer: ...
    @overload
    def generate(self, requests: Sequence[Request]) -> list[Answer]: ...
    def generate(self, requests: Request | Sequence[Request]) -> Answer | list[Answer]:
        """Answer one request or several; several share target passes, up to `max_batch` at a time."""
        single = isinstance(requests, Request)
        decoder = self.decoder()
        try:
            answers = decoder.generate([requests] if single else requests)
        finally:
            self.settle(decoder)
        return answers[0] if single else answers

    def stream(self, request: Request) -> "Stream":
        """Answer one request piece by piece, provisional pieces included."""
        return Stream(self, request)

    def close(self) -> None:
        """Stop the drafter's process or thread; the calling thread may use all its cores again."""
        if self.drafter is not None:
            self.drafter.close()
            self.drafter = None
        self.unpin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def decoder(self) -> Decoder:
        """A fresh loop over this pair, for those who drive it round by round; `settle` it afterwards."""
        options = self.options
        return Decoder(
            self.target,
            self.drafter,
            max_batch=options.max_batch,
            rule=options.rule,
            nodes=options.nodes,
            hidden_nodes=options.hidden_nodes,
            adaptive=options.adaptive,
            cost=self.cost,
        )

    def settle(self, decoder: Decoder) -> None:
        """Drop what an interrupted decoder still held; remember if its drafter was lost."""
        decoder.drop()
        self.drafter = decoder.drafter


def _ahead(options: Options, draft_cores: tuple[int, ...] | None, device: str) -> str:
    """What the drafter does while the target, which is on a device of that type, verifies."""
    if options.ahead != "auto":
        return options.ahead
    apart = draft_cores is not None and set(draft_cores).isdisjoint(options.target_cores or draft_cores)
    return policy_for(options.device, options.draft_device, own_cores=apart and device == "cpu")


class Stream:
    """Pieces of one answer as they appear; `answer` holds the whole once the iteration is over.

    The target works in a thread of its own, so that provisional text can be shown while it reads. Leaving the loop
    early, or an exception in it (Ctrl-C), cancels the request within one round.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self.answer: Answer | None = None
        self._engine = engine
        self._request = request
        self._pieces: SimpleQueue[Piece | BaseException | None] = SimpleQueue()
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Piece]:
        worker = threading.Thread(target=self._work, name="target", daemon=True)
        worker.start()
        try:
            while (piece := self._pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self._cancelled.set()
            worker.join()

    def cancel(self) -> None:
        """End the answer before its next round."""
        self._cancelled.set()

    def _work(self) -> None:
        decoder = self._engine.decoder()
        decoder.on_piece = self._pieces.put
        try:
            ticket = decoder.submit(self._request)
            begun = False
            while decoder.busy:
                if self._cancelled.is_set():
                    decoder.cancel(ticket)
                begun = begun or decoder.busy
                decoder.step()
            if begun:  # else cancelled before it began: no answer, and no error either
                self.answer = decoder.answer(ticket)
        except BaseException as error:  # noqa: BLE001 - handed over, raised in the reader's thread
            self._pieces.put(error)
        finally:
            self._engine.settle(decoder)
            self._pieces.put(None)
