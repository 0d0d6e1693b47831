"""The public surface: load a pair, ask it questions.

engine = Engine.load("reference")
answer = engine.generate(Request(video="clip.mp4", events="clip.h5", prompt="What is ahead?"))
for piece in engine.stream(request): ...
"""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from crossdraft.checkpoints.locate import source_text
from crossdraft.checkpoints.parts import parts
from crossdraft.checks import choice, core_numbers, positive, whole
from crossdraft.dtypes import dtype_name
from crossdraft.engine.cost import CostModel
from crossdraft.engine.decode import HIDDEN_NODES, ROUND_NODES, Decoder
from crossdraft.engine.devices import resolve
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.elastic import lending_pays
from crossdraft.engine.fast.pinning import one_thread, pinned
from crossdraft.engine.request import Answer, Request, listed
from crossdraft.engine.request_state import OnPiece
from crossdraft.engine.rules import check_rule
from crossdraft.engine.runner.parallel import POLICIES, policy_for
from crossdraft.engine.runner.process import PATIENCE_S, Process
from crossdraft.engine.runner.runner import HIDDEN_MODES, Inline, Placement
from crossdraft.engine.runner.supervisor import RESTARTS, Supervisor
from crossdraft.engine.scheduler import Call, PendingAnswer, Scheduler
from crossdraft.engine.target import Target
from crossdraft.errors import BatchError, CrossdraftError
from crossdraft.load import adapt_model, load_target
from crossdraft.methods import DrafterContext, check_spec, drafts_trees, read_spec
from crossdraft.placing import WHOLE, ahead_in, place_drafter, repays_a_core
from crossdraft.specs import Spec
from crossdraft.streaming import AsyncStream, Stream, awaited

WITH_EVENTS, FOREIGN = "glance", "union:memory,ngram"  # drafters for the reference target, and for any other
PLACEMENTS = ("auto", "inline", "process")


@dataclass(frozen=True)
class Options:
    """How a pair runs. Without a lossy rule every combination gives the same tokens (sampled: the same distribution).

    Args:
        placement: `inline` (this process), `process` (a process of its own), or `auto`: on a CPU with two cores or more
            a drafter with a network of its own gets a process and, where nothing is said of cores, the last core, as
            its drafting is then hidden for free; any other, and one on a shared GPU, runs in this process.
        ahead: for `process`, what the drafter does while the target verifies: `off` (nothing), `pipespec`, `pearl`,
            `ssd` or `spare` (see `engine.ahead`); `auto` is `off` where the two share a core or a device, and on a CPU
            whose target gains more by computing on the drafter's idle cores, else `ssd`.
        hidden: for `inline`, when the hidden draft is made: `auto`, `before`, `beside` or `off`.
        device, dtype: of the target; default CUDA and bfloat16 if there is a GPU, else CPU and float32.
        draft_device, draft_dtype: of the drafter; default the target's. If that is not given either, bfloat16 also on
            a CPU that multiplies it itself: what is drafted need not be as exact as what is said.
        target_cores, draft_cores: CPU cores that each may use; default all, for a drafter in a process of its own
            those that `target_cores` leaves.
        max_batch: requests that share a pass.
        nodes, hidden_nodes: most nodes drafted per round and for the ride-along.
        adaptive: let measured times and acceptances set the budget of each round.
        patience_s: how long a drafter in a process of its own may be silent while an answer of it is due before it
            counts as lost, and is restarted. No answer waits that long: a draft is waited for as long as it can save.
        rule: acceptance rule by name, with settings where it has any (`typical:eps=0.05`); default the exact one. Only
            a lossy rule changes answers, and their `stats` name it; see docs/rules.md.
        num_frames, fps: how many frames of a clip the target reads, evenly spread: so many, or so many for each
            second, not both; default what the checkpoint's own video processor says, else 8 frames. Frames that a
            request gives as an array are read as they are.

    dtypes may also be given as `torch.dtype`, devices as `torch.device`.

    Raises:
        CrossdraftError: a value of another kind, out of range, or unknown.
    """

    placement: str = "auto"
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
    patience_s: float = PATIENCE_S
    rule: str | None = None
    num_frames: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        choice("placement", self.placement, PLACEMENTS)
        choice("ahead", self.ahead, ("auto", *POLICIES))
        choice("hidden", self.hidden, HIDDEN_MODES)
        choice("adaptive", self.adaptive, (True, False))
        check_rule(self.rule)
        # Written back in one form each, so that whoever reads an option finds a string, an int, a tuple of ints.
        for name in ("max_batch", "nodes", "hidden_nodes"):
            self._set(name, whole(name, getattr(self, name)))
        for name in ("dtype", "draft_dtype"):
            if (dtype := getattr(self, name)) is not None:
                self._set(name, dtype_name(dtype, name))
        for name in ("device", "draft_device"):
            if (device := getattr(self, name)) is not None:
                self._set(name, str(device))
        for name in ("target_cores", "draft_cores"):
            self._set(name, core_numbers(name, getattr(self, name), available_cores()))
        if self.num_frames is not None:
            self._set("num_frames", whole("num_frames", self.num_frames))
        self._set("patience_s", positive("patience_s", self.patience_s))
        if self.fps is not None:
            self._set("fps", positive("fps", self.fps))
        if None not in (self.num_frames, self.fps):
            raise CrossdraftError(
                f"num_frames is {self.num_frames} and fps is {self.fps}; give one of them, the other follows."
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


class Engine:
    """A target and, if there is one, its drafter. Use as a context manager, or `close` it.

    One thread of its own runs the loop, on the target's cores. Requests may come from any thread, from asyncio, and
    while others are answered; those that run at the same time share target passes, up to `max_batch`.
    """

    def __init__(
        self,
        target: Target,
        drafter: Placement | None,
        options: Options,
        cost: CostModel,
        spec: Spec | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`spec` names the drafter; `release` is called when the engine is closed."""
        self.target = target
        self.options = options
        self._spec = spec
        self.cost = cost
        supervisor = self._supervisor = Supervisor(drafter, RESTARTS)

        # It knows nothing of this engine, so that one that is not closed can be collected.
        self._make = partial(new_decoder, target, supervisor, options, cost)
        self._scheduler = Scheduler(self._make, options.target_cores)
        self._finalizer = weakref.finalize(self, _close, os.getpid(), self._scheduler, supervisor, release)

    @property
    def drafter(self) -> Placement | None:
        """The drafter; `None` if there is none, or while it is lost."""
        return self._supervisor.placement

    @classmethod
    def load(
        cls,
        target: str | os.PathLike[str] = "reference",
        drafter: str | os.PathLike[str] | None = "auto",
        options: Options | None = None,
    ) -> Self:
        """Load a pair.

        Args:
            target: `reference`, the folder of a Hugging Face checkpoint of a supported class, or the repository id of
                one in the local cache.
            drafter: a spec such as `event`, `memory` or `union:event,memory` (see `methods.METHODS`), the folder of an
                EventGPT, or `None` or `none` for the target alone; `auto` is `glance`, which
                reads events, for the reference target, and `union:memory,ngram`, which fits any, for another.
            options: see `Options`.

        Raises:
            CrossdraftError: a folder lacks something, shapes or keys differ, the vocabularies do, a name is unknown,
                or the acceptance rule cannot judge the drafter's trees.
        """
        source = source_text(target)
        if drafter == "auto":
            drafter = WITH_EVENTS if source == "reference" else FOREIGN
        spec, options = _checked(drafter, options)

        def adapted() -> Target:
            return load_target(source, options.device, options.dtype, num_frames=options.num_frames, fps=options.fps)

        return cls._load(adapted, DrafterContext(source), spec, options)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        processor: ProcessorMixin | PreTrainedTokenizerBase,
        drafter: str | os.PathLike[str] | None = FOREIGN,
        options: Options | None = None,
        *,
        packed: bool = False,
    ) -> Self:
        """An engine around a Hugging Face model that is loaded already, which stays as it is unless it is `packed`.

        Args:
            model: a video VLM of a supported class, in eval mode, where it is to run.
            processor: its processor, or its tokenizer; see `load.adapt_model`.
            drafter: as in `load`.
            options: as in `load`, without `device` and `dtype`: those are the model's.
            packed: give the model's layers the layout that is fastest here, for good; see `load.load_target`.

        Raises:
            CrossdraftError: as `load.adapt_model`, or the drafter does not fit.
        """
        spec, options = _checked(drafter, options)
        if options.device is not None or options.dtype is not None:
            raise CrossdraftError(
                "Options(device=…, dtype=…) are for Engine.load; move a loaded model yourself, with model.to(…)."
            )
        target = adapt_model(model, processor, options.num_frames, options.fps, packed=packed)
        origin = model.config.name_or_path
        source = origin if origin and Path(origin).is_dir() else None
        context = DrafterContext(source, tokenizer=parts(processor)[0])
        options = replace(options, device=str(model.device))
        try:
            return cls._load(lambda: target, context, spec, options, target.release)
        except BaseException:
            target.release()
            raise

    @classmethod
    def _load(
        cls,
        make_target: Callable[[], Target],
        context: DrafterContext,
        spec: Spec | None,
        options: Options,
        release: Callable[[], None] = lambda: None,
    ) -> Self:
        """Make the pair; `context` knows the target by name."""
        options, cost = decided(options, spec), CostModel()
        # The OpenMP threads of this thread would count against those of the loop; see `alone`.
        with one_thread():
            loaded = make_target()
        placed = None if spec is None else cls._placed(spec, context, loaded, options, cost)
        return cls(loaded, placed, options, cost, spec, release)

    @staticmethod
    def _placed(spec: Spec, context: DrafterContext, loaded: Target, options: Options, cost: CostModel) -> Placement:
        """The drafter that a spec names, where the options want it.

        Raises:
            CrossdraftError: it cannot be made.
        """
        context = replace(
            context,
            device=options.draft_device or options.device,
            dtype=options.draft_dtype or options.dtype,
            vocab_size=loaded.vocab_size,
            eos=tuple(sorted(loaded.eos)),
            banned=tuple(sorted(loaded.reserved)),
            num_frames=options.num_frames,
            fps=options.fps,
        )
        allowed = available_cores()
        left = tuple(core for core in allowed if core not in (options.target_cores or ())) or allowed
        cores = options.draft_cores or (None if options.target_cores is None else left)

        def apart(factory: "partial[Drafter[Any]]", *, role: str) -> Placement:
            usual = _ahead(options, cores, loaded.device.type, role)
            return Process(factory, cores, options.patience_s, ahead=ahead_in(role, usual))

        return place_drafter(
            spec,
            context,
            loaded,
            lambda drafter: Inline(drafter, cost, options.hidden, resolve(options.draft_device or loaded.device)),
            apart if options.placement == "process" else None,
        )

    def submit(self, request: Request, on_piece: OnPiece | None = None, *, provisional: bool = True) -> PendingAnswer:
        """Queue a request and return at once; `result` of what is returned waits for the answer.

        Args:
            request: what to answer.
            on_piece: told every piece as it appears, in a thread of the engine; must return at once.
            provisional: whether it is told provisional pieces.

        Raises:
            CrossdraftError: the engine is closed.
        """
        return self._scheduler.submit(listed(request)[0], on_piece, provisional=provisional, owner=self)

    @overload
    def generate(self, requests: Request) -> Answer: ...
    @overload
    def generate(self, requests: Sequence[Request]) -> list[Answer]: ...
    def generate(self, requests: Request | Sequence[Request]) -> Answer | list[Answer]:
        """Answer one request or several. Ctrl-C cancels them.

        Raises:
            CrossdraftError: what is wrong with the one request, or with the engine.
            BatchError: some of several requests failed; its `results` hold the others' answers.
        """
        done = self._results(listed(requests))
        if isinstance(requests, Request):
            return done[0].result()
        results = [future.exception() or future.result() for future in done]
        if any(isinstance(result, BaseException) for result in results):
            raise BatchError(results)
        return [future.result() for future in done]

    def _results(self, requests: Sequence[Request]) -> "list[Future[Answer]]":
        self._scheduler.check_caller()
        pending = [self.submit(request) for request in requests]
        try:
            wait([one.future for one in pending])
        finally:
            for one in pending:
                one.cancel()  # those that are not over, if we were interrupted
        return [one.future for one in pending]

    def stream(self, request: Request, *, final_only: bool = False) -> Stream:
        """Answer one request piece by piece; without provisional pieces if `final_only`, for those who print."""
        (asked,) = listed(request)
        return Stream(lambda on_piece: self.submit(asked, on_piece, provisional=not final_only))

    async def agenerate(self, request: Request) -> Answer:
        """As `generate` of one request, for asyncio: cancelling the task cancels the request."""
        return await awaited(self.submit(request))

    def astream(self, request: Request, *, final_only: bool = False) -> AsyncStream:
        """As `stream`, for `async for`."""
        (asked,) = listed(request)
        return AsyncStream(lambda on_piece: self.submit(asked, on_piece, provisional=not final_only))

    def alone(self, request: Request, cores: Sequence[int] | None = None) -> Answer:
        """The target's answer without the drafter, judged exactly; for comparisons, as nothing else runs meanwhile.

        It is written in the same thread: a second one that computes would have OpenMP threads of its own, and where
        there are more of those than cores, all of them sleep between two operations. Ctrl-C and `close` end it.

        Args:
            request: what to answer.
            cores: CPU cores to use; `None` = the target's own.
        """
        interrupted = threading.Event()

        def answer() -> Answer:
            decoder = Decoder(self.target)
            request_id = decoder.submit(request)
            with pinned(cores):
                while decoder.busy:
                    if interrupted.is_set() or self._scheduler.closed:
                        decoder.cancel(request_id)
                    decoder.step()
            return decoder.answer(request_id)

        try:
            return self._scheduler.call(answer)
        finally:
            interrupted.set()

    def decoder(self) -> "SteppedDecoder":
        """A fresh loop over this pair, for those who drive it round by round; `drop` it afterwards."""
        return SteppedDecoder(self, self._scheduler, self._make)

    def __repr__(self) -> str:
        model, drafter = type(self.target.model).__name__, None if self._spec is None else str(self._spec)
        return f"Engine(target={model}, drafter={drafter!r}, placement={self.options.placement!r})"

    def close(self) -> None:
        """Stop the loop's thread and the drafter. May be called twice, and from any thread."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SteppedDecoder:
    """A loop of its own over an engine's pair: see `Decoder`. Its rounds run in the engine's thread, between others."""

    def __init__(self, engine: Engine, scheduler: Scheduler, make: Callable[[], Decoder]) -> None:
        self._engine = engine  # is not collected as long as this is used
        self._call = scheduler.call
        self._decoder = scheduler.call(make)
        # Who forgets it leaves nothing behind in the drafter.
        weakref.finalize(self, _forget, scheduler, self._decoder).atexit = False

    def submit(self, request: Request, on_piece: OnPiece | None = None, *, provisional: bool = True) -> int:
        """See `Decoder.submit`."""
        return self._call(lambda: self._decoder.submit(request, on_piece, provisional=provisional))

    def cancel(self, request_id: int) -> bool:
        """See `Decoder.cancel`."""
        return self._call(lambda: self._decoder.cancel(request_id))

    @property
    def busy(self) -> bool:
        """See `Decoder.busy`."""
        return self._call(lambda: self._decoder.busy)

    def step(self) -> None:
        """See `Decoder.step`."""
        self._call(self._decoder.step)

    def finished(self) -> list[int]:
        """See `Decoder.finished`."""
        return self._call(self._decoder.finished)

    def answer(self, request_id: int) -> Answer:
        """See `Decoder.answer`."""
        return self._call(lambda: self._decoder.answer(request_id))

    def drop(self) -> None:
        """See `Decoder.drop`."""
        self._call(self._decoder.drop)


def new_decoder(target: Target, drafter: Placement | Supervisor | None, options: Options, cost: CostModel) -> Decoder:
    """A decode loop over a target and a drafter, as the options say."""
    return Decoder(
        target,
        drafter,
        max_batch=options.max_batch,
        rule=options.rule,
        nodes=options.nodes,
        hidden_nodes=options.hidden_nodes,
        adaptive=options.adaptive,
        cost=cost,
    )


def _close(process: int, scheduler: Scheduler, supervisor: Supervisor, release: Callable[[], None]) -> None:
    if os.getpid() == process:  # in a fork of that one, thread and drafter are not ours
        scheduler.close()
        supervisor.close()
        release()


def _forget(scheduler: Scheduler, decoder: Decoder) -> None:
    with suppress(CrossdraftError):
        scheduler.post(Call(decoder.drop, lambda error: None))


def _checked(drafter: str | os.PathLike[str] | None, options: Options | None) -> tuple[Spec | None, Options]:
    """The drafter's spec and the options, after all that can be told of them before anything is loaded.

    Raises:
        CrossdraftError: the options are none, a name in the spec is unknown, or the acceptance rule cannot judge what
            the drafter drafts.
    """
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise CrossdraftError(
            f"options is a {type(options).__name__}; write crossdraft.Options(…), such as Options(max_batch=4)."
        )
    if drafter is None or drafter == "none":
        return None, options
    spec, rule = read_spec(drafter), check_rule(options.rule)
    check_spec(spec)
    if rule is not None and rule.chains and drafts_trees(spec):
        raise CrossdraftError(
            f"The acceptance rule '{rule.name}' judges chains, and the drafter '{spec}' drafts trees; name no rule, or "
            "a drafter of chains such as event, ngram or eagle2:tree=chain."
        )
    return spec, options


def decided(options: Options, spec: Spec | None) -> Options:
    """The options with the placement `auto` decided."""
    if options.placement != "auto":
        return options
    allowed = available_cores()
    apart = spec is not None and repays_a_core(spec) and options.hidden == "auto" and len(allowed) > 1
    if not (apart and _on_cpu(options.draft_device or options.device)):
        return replace(options, placement="inline", draft_cores=None)
    if options.target_cores is None and _on_cpu(options.device):
        draft = options.draft_cores or allowed[-1:]
        own = tuple(core for core in allowed if core not in draft) or allowed
        options = replace(options, target_cores=own, draft_cores=draft)
    return replace(options, placement="process")


def _on_cpu(device: str | None) -> bool:
    return device == "cpu" or (device is None and not torch.cuda.is_available())


def _ahead(options: Options, draft_cores: tuple[int, ...] | None, device: str, role: str) -> str:
    """What a drafter in that role does while the target, which is on a device of that type, verifies."""
    if options.ahead != "auto":
        return options.ahead
    own, draft = options.target_cores or (), draft_cores or ()
    apart = device == "cpu" and bool(own and draft) and set(draft).isdisjoint(own)
    lends = apart and role == WHOLE and lending_pays(own, draft)
    return policy_for(options.device, options.draft_device, own_cores=apart, lends_cores=lends)
