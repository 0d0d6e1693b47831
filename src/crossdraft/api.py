"""The public surface: load a pair, ask it questions.

engine = Engine.load("reference")
answer = engine.generate(Request(video="clip.mp4", events="clip.h5", prompt="What is ahead?"))
for piece in engine.stream(request): ...
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

import transformers
from packaging.version import Version
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from crossdraft.assembly import assemble, cache_bytes, decided
from crossdraft.checkpoints import models as checkpoint_models
from crossdraft.checkpoints.locate import source_text
from crossdraft.checkpoints.mtp import has_mtp
from crossdraft.checkpoints.parts import parts
from crossdraft.checks import core_numbers
from crossdraft.compressions import CHECK, BudgetStatus, checked_by, compressed, settings_of, shares_prefixes
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.devices import usable_device
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.elastic import disband
from crossdraft.engine.fast.pinning import loading, one_thread, pinned
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.pass_times import calibrate
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.request import Answer, Request, listed, single
from crossdraft.engine.request_state import OnPiece
from crossdraft.engine.rules import check_rule, check_target
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.scheduler import PendingAnswer, Scheduler
from crossdraft.engine.stepped import SteppedLoop
from crossdraft.engine.target import Target
from crossdraft.errors import BatchError, CrossdraftError
from crossdraft.load import VERIFIED, adapt_model, load_target
from crossdraft.methods import check_drafter_files, check_spec, drafts_trees, read_spec
from crossdraft.options import Options
from crossdraft.records import DrafterContext
from crossdraft.specs import Spec
from crossdraft.streaming import AsyncStream, Stream, awaited

log = logging.getLogger(__name__)

ENCODES_CLIPS = Version("5.18")  # since this transformers a clip is encoded by itself, which `glance` drafts from
USUAL = "glance"  # the reference target's drafter, where requests have events
FOR_OTHERS = "union:memory,ngram"  # for targets without layers for multi-token prediction: needs no training


def default_drafter(target: str, options: Options | None = None, *, events: bool | None = True) -> str:
    """The drafter of a target for which none is named.

    Args:
        target: its source, as in `Engine.load`.
        options: the engine's; MTP layers run on one device.
        events: whether requests come with event recordings; `None` = some do.
    """
    if target != "reference":
        mapped = options is not None and options.device_map is not None
        return "mtp" if not mapped and has_mtp(target) else FOR_OTHERS
    usual = USUAL if Version(transformers.__version__) >= ENCODES_CLIPS else "event"
    return usual if events else "eagle2" if events is False else f"fallback:{usual},eagle2"


class Engine:
    """A target and, if there is one, its drafter. Use as a context manager, or `close` it.

    One thread of its own runs the loop, on the target's cores. Requests may come from any thread, from asyncio, and
    while others are answered; those that run at the same time share target passes, up to `max_batch`.
    """

    def __init__(
        self,
        target: Target,
        drafter: DraftRunner[Any] | None,
        options: Options,
        cost: CostModel,
        spec: Spec | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`spec` names the drafter; `release` is called when the engine is closed."""
        check_target(options.rule, target)  # now rather than with the first request
        self.target = target
        self.options = options
        self._spec = spec
        self.cost = cost
        self._drafter = drafter
        # `_make` holds no reference to this engine, so that an engine that is not closed can be garbage-collected.
        kept = cache_bytes(options, target.device) if shares_prefixes(options.lossy_prefill) else 0
        self.prefixes = PrefixCache(kept)
        self._make = partial(new_loop, target, drafter, options, cost, self.prefixes)
        most = None if options.max_queue is None else options.max_batch + options.max_queue
        self._scheduler = Scheduler(self._make, options.target_cores, most)
        self._finalizer = weakref.finalize(self, _close, os.getpid(), self._scheduler, drafter, release)

    @property
    def drafter(self) -> DraftRunner[Any] | None:
        """The drafter; `None` if there is none, or while it is lost."""
        runner = self._drafter
        return None if runner is None or runner.drafter is None else runner

    @property
    def drafter_alive(self) -> bool:
        """True if there is a drafter, and its processes run now; its loss shows here before a request meets it."""
        return self._drafter is not None and self._drafter.alive

    @property
    def drafter_spec(self) -> str | None:
        """The spec of the drafter that was chosen or given; `None` if there is none, or an object was given."""
        return None if self._spec is None else str(self._spec)

    @property
    def closed(self) -> bool:
        """True once the engine answers nothing any more."""
        return self._scheduler.closed

    @property
    def rows(self) -> int:
        """Rows of the target's cache that are in use, one for each request that is being answered."""
        return self._scheduler.rows

    @property
    def prefill_status(self) -> BudgetStatus | None:
        """The state of the quality budget of `Options.lossy_prefill`; `None` without one."""
        return None if (checked := checked_by(self.target)) is None else checked.status

    @classmethod
    def load(
        cls,
        target: str | os.PathLike[str] = "reference",
        drafter: str | os.PathLike[str] | Drafter[Any] | None = "auto",
        options: Options | None = None,
    ) -> Self:
        """Load a pair.

        Args:
            target: `reference`, the folder of a Hugging Face checkpoint of a supported class, or the repository id of
                one in the local cache.
            drafter: a spec such as `event`, `memory` or `union:event,memory` (see `methods.METHODS`), the folder of an
                EventGPT, a `Drafter` of your own, or `None` or `none` for the target alone; `auto` is the
                `default_drafter` of a target whose requests come with events.
            options: see `Options`.

        Raises:
            CrossdraftError: a folder lacks something, shapes or keys differ, the vocabularies do, a name is unknown,
                or the acceptance rule cannot judge the drafter's trees.
        """
        source = source_text(target)
        if isinstance(drafter, str) and drafter == "auto":
            drafter = default_drafter(source, options)
            log.info("No drafter was named for %s: it is %s.", source, drafter)
        chosen, options = _checked(drafter, options)
        checkpoint_models.check_target(source)
        usable_device(options.device, "device")
        if isinstance(chosen, Spec):
            check_drafter_files(chosen, source)

        def adapted() -> Target:
            return load_target(
                source,
                options.device,
                options.dtype,
                num_frames=options.num_frames,
                fps=options.fps,
                quantize=options.quantize,
                device_map=options.device_map,
                rows=VERIFIED if chosen else options.max_batch,
            )

        return cls._load(adapted, DrafterContext(source), chosen, options)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        processor: ProcessorMixin | PreTrainedTokenizerBase,
        drafter: str | os.PathLike[str] | Drafter[Any] | None = FOR_OTHERS,
        options: Options | None = None,
        *,
        packed: bool = False,
    ) -> Self:
        """Make an engine around a loaded Hugging Face model, which stays unchanged unless it is `packed`.

        Args:
            model: a video VLM of a supported class, in eval mode, where it is to run.
            processor: its processor, or its tokenizer; see `load.adapt_model`.
            drafter: as in `load`.
            options: as in `load`, without `device` and `dtype`: those are the model's.
            packed: give the model's layers the layout that is fastest here, for good; see `load.load_target`.

        Raises:
            CrossdraftError: as `load.adapt_model`, or the drafter does not fit.
        """
        chosen, options = _checked(drafter, options)
        if (options.device, options.dtype, options.device_map) != (None, None, None):
            raise CrossdraftError(
                "Options(device=…, dtype=…, device_map=…) are for Engine.load; move a loaded model yourself, with "
                "model.to(…)."
            )
        if options.quantize is not None:
            raise CrossdraftError(
                "Options(quantize=…) is for Engine.load; for the drafter of a loaded model say draft_quantize."
            )
        target = adapt_model(model, processor, options.num_frames, options.fps, packed=packed)
        target.hold()
        origin = model.config.name_or_path
        source = origin if origin and Path(origin).is_dir() else None
        context = DrafterContext(source, tokenizer=parts(processor)[0])
        options = replace(options, device=str(target.device))
        try:
            return cls._load(lambda: target, context, chosen, options, target.release)
        except BaseException:
            target.release()
            raise

    @classmethod
    def _load(
        cls,
        make_target: Callable[[], Target],
        context: DrafterContext,
        drafter: Spec | Drafter[Any] | None,
        options: Options,
        release: Callable[[], None] = lambda: None,
    ) -> Self:
        """Load the target, assemble the drafter, and make the engine of both; `context` describes the target."""
        options, cost = decided(options, drafter if isinstance(drafter, Spec) else None), CostModel()
        with loading(options.target_cores):
            loaded = make_target()
            if options.lossy_prefill is not None:
                loaded = compressed(loaded, options.lossy_prefill)
        check_target(options.rule, loaded)  # before anything is started
        runner: DraftRunner[Any] | None = None
        try:
            if options.compile:
                with one_thread():
                    loaded.compile(options.max_batch, 1 + options.nodes)
            if drafter is not None:
                runner = assemble(drafter, context, loaded, options)
            spec = drafter if isinstance(drafter, Spec) else None
            engine = cls(loaded, runner, options, cost, spec, release)
        except BaseException:
            if runner is not None:
                runner.close()
            release()
            raise
        finally:
            disband()
        if runner is not None and options.adaptive:  # passes are timed now rather than with the first request
            try:
                engine._scheduler.start()
            except BaseException:
                engine.close()
                raise
        return engine

    def submit(self, request: Request, on_piece: OnPiece | None = None, *, provisional: bool = True) -> PendingAnswer:
        """Queue a request and return at once; `result` of the returned object waits for the answer.

        Args:
            request: what to answer.
            on_piece: told every piece as it appears, in a thread of the engine; must return at once.
            provisional: tell `on_piece` provisional pieces too.

        Raises:
            QueueFullError: as many requests wait as `Options.max_queue` allows.
            CrossdraftError: the engine is closed.
        """
        return self._submit(single(request), on_piece, provisional=provisional)

    def _submit(
        self, request: Request, on_piece: OnPiece | None = None, *, provisional: bool = True, patient: bool = False
    ) -> PendingAnswer:
        if request.group and request.sampling.over(self.target.defaults.sampling).greedy:
            raise CrossdraftError(
                "Several answers are asked for, and greedy ones are equal; give a temperature above 0, or ask for one."
            )
        if not shares_prefixes(self.options.lossy_prefill):
            request = replace(request)  # without its group
        checked = checked_by(self.target)
        check = None if checked is None else checked.check_of(request, self._scheduler)
        asked = request if check is None else replace(request, extras={CHECK: check})
        return self._scheduler.submit(
            asked, on_piece, provisional=provisional, owner=self, patient=patient, check=check
        )

    @overload
    def generate(self, requests: Request) -> Answer: ...
    @overload
    def generate(self, requests: Sequence[Request]) -> list[Answer]: ...
    def generate(self, requests: Request | Sequence[Request]) -> Answer | list[Answer]:
        """Answer one request or several; an empty list has an empty list of answers. Ctrl-C cancels them.

        Of several requests, those that find no room are queued as room comes; so a batch may be
        longer than `Options.max_queue`.

        Raises:
            QueueFullError: the queue is full of other callers' requests, without room for the first of these.
            CrossdraftError: the one request or the engine failed, as the message says.
            BatchError: some of several requests failed; its `results` hold the others' answers.
        """
        done = self._results(listed(requests))
        if isinstance(requests, Request):
            try:
                return done[0].result()
            finally:
                done.clear()  # an error's traceback holds this frame
        results = [future.exception() or future.result() for future in done]
        if any(isinstance(result, BaseException) for result in results):
            raise BatchError(results)
        return [future.result() for future in done]

    def _results(self, requests: Sequence[Request]) -> "list[Future[Answer]]":
        self._scheduler.check_caller()
        pending: list[PendingAnswer] = []
        try:
            for request in requests:
                pending.append(self._submit(request, patient=bool(pending)))
            wait([one.future for one in pending])
        finally:
            for one in pending:
                one.cancel()  # those that are not over, if we were interrupted
        return [one.future for one in pending]

    def stream(self, request: Request, *, final_only: bool = False) -> Stream:
        """Answer one request piece by piece; `final_only` leaves out provisional pieces, for callers that print."""
        asked = single(request)
        return Stream(lambda on_piece: self.submit(asked, on_piece, provisional=not final_only))

    async def agenerate(self, request: Request) -> Answer:
        """Answer one request as `generate` does, for asyncio: cancelling the task cancels the request."""
        return await awaited(self.submit(request))

    def astream(self, request: Request, *, final_only: bool = False) -> AsyncStream:
        """Answer one request piece by piece as `stream` does, for `async for`."""
        asked = single(request)
        return AsyncStream(lambda on_piece: self.submit(asked, on_piece, provisional=not final_only))

    def alone(
        self, request: Request, cores: Sequence[int] | None = None, stop: threading.Event | None = None
    ) -> Answer:
        """Answer by the target without the drafter, judged exactly; for comparisons, as nothing else runs meanwhile.

        The loop's thread writes the answer: a second computing thread would have OpenMP threads of its own, and if
        these outnumber the cores, they all sleep between two operations. Ctrl-C and `close` end the answer.

        Args:
            request: what to answer.
            cores: CPU cores to use; `None` = the target's own.
            stop: once it is set, the answer ends within a round.

        Raises:
            CrossdraftError: the request or the engine failed, as the message says, or a core does not exist.
            CancelledError: `stop` was set before the answer began.
        """
        asked = replace(single(request), predictions=(), hints=())
        cores = core_numbers("cores", cores, available_cores(), none="the target's own")
        interrupted = threading.Event()

        def answer() -> Answer:
            decoder = DecodeLoop(self.target, prefill_chunk=self.options.prefill_chunk)  # the pieces of the loop
            request_id = decoder.submit(asked)
            with pinned(cores):
                while decoder.busy:
                    if interrupted.is_set() or self._scheduler.closed or (stop is not None and stop.is_set()):
                        decoder.cancel(request_id)
                    decoder.step()
            hand_back(decoder.cache)
            return decoder.answer(request_id)

        try:
            return self._scheduler.call(answer)
        finally:
            interrupted.set()

    def decoder(self) -> SteppedLoop:
        """A fresh loop over this pair, to be driven round by round; `drop` it afterwards."""
        return SteppedLoop(self, self._scheduler, self._make)

    def __repr__(self) -> str:
        model = type(self.target.model).__name__
        return f"Engine(target={model}, drafter={self.drafter_spec!r}, placement={self.options.placement!r})"

    def close(self) -> None:
        """Stop the loop's thread, the threads that read for it, and the drafter. Callable twice, in any thread."""
        if (registered := self._finalizer.detach()) is not None:
            _, close, parts, _ = registered
            close(*parts, begun=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def new_loop(
    target: Target,
    drafter: DraftRunner[Any] | None,
    options: Options,
    cost: CostModel,
    prefixes: PrefixCache | None = None,
) -> DecodeLoop:
    """A decode loop over a target and a drafter, as the options say; with `adaptive` its passes are timed first."""
    if drafter is not None and options.adaptive:  # first: it hands back the cache that the loop then takes
        calibrate(target, cost, options.max_batch, drafter.spare_cores)
    return DecodeLoop(
        target,
        drafter,
        max_batch=options.max_batch,
        rule=options.rule,
        nodes=options.nodes,
        hidden_nodes=options.hidden_nodes,
        adaptive=options.adaptive,
        cost=cost,
        prefixes=prefixes,
        prefill_chunk=options.prefill_chunk,
        kv_bytes=options.kv_bytes,
    )


def _close(
    process: int,
    scheduler: Scheduler,
    drafter: DraftRunner[Any] | None,
    release: Callable[[], None],
    *,
    begun: bool = False,
) -> None:
    """End an engine's parts, and if `begun` wait for what threads that read have begun.

    An engine that is garbage-collected does not wait: the collection may run in one of these threads.
    """
    if os.getpid() == process:  # in a forked process, thread and drafter are the parent's
        scheduler.close(begun=begun)
        if drafter is not None:
            drafter.close()
        release()


def _checked(
    drafter: str | os.PathLike[str] | Drafter[Any] | None, options: Options | None
) -> tuple[Spec | Drafter[Any] | None, Options]:
    """Return the drafter's spec and the options, checked as far as possible before anything is loaded.

    Raises:
        CrossdraftError: the options are none, the drafter's device is not here, a name in the spec is unknown, the
            lossy prefill cannot be read, or the acceptance rule cannot judge what the drafter drafts.
    """
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise CrossdraftError(
            f"options is a {type(options).__name__}; write crossdraft.Options(…), such as Options(max_batch=4)."
        )
    if options.lossy_prefill is not None:
        settings_of(options.lossy_prefill)
    if drafter is None or (isinstance(drafter, str) and drafter == "none"):
        return None, options
    if options.draft_device is not None:
        usable_device(options.draft_device, "draft_device")
    if isinstance(drafter, Drafter):
        return drafter, options
    spec, rule = read_spec(drafter), check_rule(options.rule)
    check_spec(spec)
    if rule is not None and rule.chains and drafts_trees(spec):
        raise CrossdraftError(
            f"The acceptance rule '{rule.name}' verifies chains, and the drafter '{spec}' drafts trees; name no rule, "
            "or a drafter of chains such as event, ngram or eagle2:tree=chain."
        )
    if rule is not None and rule.drafter not in (None, spec.name):
        raise CrossdraftError(
            f"The acceptance rule '{rule.name}' verifies what the drafter '{rule.drafter}' drafts, and '{spec}' is "
            "another; name no rule, or that drafter."
        )
    return spec, options
