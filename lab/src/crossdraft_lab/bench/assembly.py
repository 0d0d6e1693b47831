"""The benches' methods by name: our engine with each drafter in each placement, and the baselines."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from crossdraft.api import Engine, new_loop
from crossdraft.cli.cores import Cores
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.ledger import READING
from crossdraft.engine.policy import ROUND_NODES
from crossdraft.engine.request import Answer, Piece, Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.target import Target
from crossdraft.engine.timeline import Timeline, covered
from crossdraft.load import load_target, vocabulary_of
from crossdraft.methods import build_spec
from crossdraft.options import Options
from crossdraft.records import DrafterContext
from crossdraft.specs import Spec
from crossdraft_lab.bench.measure import BenchMethod, Run
from crossdraft_lab.bench.specs import ON_TARGETS_CORES, runs_in_process, spec_of
from crossdraft_lab.bench.structures import TimedStructure
from crossdraft_lab.bench.workload import Item


@dataclass(frozen=True, slots=True)
class Models:
    """The models' checkpoints and devices; see `crossdraft.api.Options` for the meaning of each.

    `assistant` is a text model that drafts for Hugging Face's `generate`; `None` = the blind twin does. `compiled`: our
    methods' passes over one request's tokens are compiled.
    """

    target: str = "reference"
    event: str = "event"
    blind: str = "blind"
    device: str | None = None
    dtype: str | None = None
    draft_device: str | None = None
    draft_dtype: str | None = None
    num_frames: int | None = None
    quantize: str | None = None
    draft_quantize: str | None = None
    assistant: str | None = None
    compiled: bool = False

    def load_target(self, *, packed: bool = True) -> Target:
        """Load the target that our methods share; `packed=False` keeps it as Hugging Face has it, for the baselines."""
        frames, bits = self.num_frames, self.quantize
        target = load_target(self.target, self.device, self.dtype, packed=packed, num_frames=frames, quantize=bits)
        if self.compiled and packed:
            target.compile(1, 1 + ROUND_NODES)
        return target

    def factory(self, name: str, target: Target) -> "partial[Drafter[Any]]":
        """Return a picklable factory of the drafter of this name, or of the drafter that a spec names."""
        return partial(build_spec, self.spec(name), self.context(target))

    def spec(self, name: str) -> Spec:
        """Spec of the drafter of this name, with this record's `event` and `blind` models for the usual ones."""
        return self.named(spec_of(name))

    def named(self, spec: Spec) -> Spec:
        """Put this record's `event` and `blind` models into a spec, in place of the usual ones."""
        name = {"event": self.event, "blind": self.blind}.get(spec.name, spec.name)
        return replace(spec, name=name, parts=tuple(map(self.named, spec.parts)))

    def build(self, spec: Spec, target: Target) -> Drafter[Any]:
        """Build the drafter of a spec in this process, with access to the target where it needs that."""
        return build_spec(self.named(spec), replace(self.context(target), host=target))

    def context(self, target: Target) -> DrafterContext:
        """Context in which drafters for that target run."""
        return DrafterContext(
            self.target,
            self.draft_device or self.device,
            self.draft_dtype or self.dtype,
            target.vocab_size,
            tuple(sorted(target.eos)),
            tuple(sorted(target.reserved)),
            quantize=self.quantize,
            num_frames=self.num_frames,
        )

    def drafter(self, source: str, target: Target) -> "partial[IndependentDrafter]":
        """Return a picklable factory of a drafter in the target's precision, where Hugging Face is faster on CPUs."""
        return partial(
            load_drafter,
            source,
            device=self.draft_device or self.device,
            dtype=self.draft_dtype or str(target.model.dtype).removeprefix("torch."),
            banned=tuple(sorted(target.reserved)),
            vocabulary=vocabulary_of(self.target),
        )


class EngineMethod:
    """Our engine as a method. `blank` replaces the events of every request, for a blind twin.

    Without `forced_text` nothing is drafted of what a structure forces.

    Its loop runs in the calling thread, as Hugging Face's does, not in the engine's own: OpenMP keeps a pool of threads
    for every thread that computes, and as soon as a process has more of them than cores, libgomp has all of them sleep
    between two operations. With a pool for each method none would gain from a second core.
    """

    def __init__(
        self,
        engine: Engine,
        blank: object = None,
        *,
        blind: bool = False,
        forced_text: bool = True,
        cores: Cores | None = None,
    ) -> None:
        self.engine = engine
        self.cores = cores
        self.blank = blank
        self.blind, self.forced_text = blind, forced_text
        self._times: Counter[tuple[int, str]] = Counter()
        with pinned(None if cores is None else cores.target):  # its passes are timed on the cores that they run on
            self._loop = new_loop(engine.target, engine.drafter, engine.options, engine.cost, engine.prefixes)

    @property
    def workers(self) -> list[int]:
        drafter = self.engine.drafter
        return [worker.pid for worker in drafter.workers if isinstance(worker, ProcessDrafter)] if drafter else []

    def answer(self, item: Item) -> Run:
        request = replace(item.request, events=self.blank) if self.blind else item.request
        # What is learned from an answer must not help when the same question comes again.
        pair = item.seed, item.request.prompt
        self._times[pair] += 1
        if request.namespace is not None:  # as a warm-up's is
            request = replace(request, namespace=f"repeat {self._times[pair]}")
        timed = None if request.structure is None else TimedStructure(request.structure, self.forced_text)
        start = time.perf_counter()
        (answer,) = self._loop.generate([replace(request, structure=timed)])
        run = run_of(answer, time.perf_counter() - start)
        return run if timed is None else replace(run, masks_s=timed.seconds, masked_nodes=timed.nodes)

    def ask(self, request: Request, on_piece: Callable[[Piece], None]) -> Answer:
        """Answer a request unchanged; `on_piece` gets its final pieces as they appear."""
        number = self._loop.submit(request, on_piece, provisional=False)
        while self._loop.busy:
            self._loop.step()
        return self._loop.answer(number)

    def close(self) -> None:
        self.engine.close()


def run_of(answer: Answer, total_s: float) -> Run:
    """Convert an engine's answer into a run.

    `draft` holds the drafter's computing that the target waited for, `communication` what else passed until a reply was
    here: sending, packing, idling. Drafting during the target's own work is in neither.
    """
    stats, times = answer.stats, answer.stats.stages_s
    rounds = times.get("rounds", 0.0)
    overhead = max(0.0, rounds - times.get("verify", 0.0) - times.get("draft", 0.0))
    stages = {name: times.get(name, 0.0) for name in (*READING, "ride-along")}
    stages["draft"] = times.get("draft", 0.0) + times.get("hidden draft", 0.0)
    stages["communication"] = times.get("communication", 0.0) + times.get("hidden communication", 0.0)
    stages["verify"] = times.get("verify", 0.0)
    stages["engine"] = max(0.0, overhead - times.get("communication", 0.0))
    stages["other"] = max(0.0, total_s - sum(stages.values()))
    read_s = stages["encode"] + stages["prefill"]
    return Run(
        tokens=answer.tokens,
        total_s=total_s,
        ttft_s=stats.ttft_s,
        stages_s=stages,
        rounds=stats.rounds,
        accepted_at=tuple(stats.accepted_at),
        offered_at=tuple(stats.drafted_at),
        prefill_s=read_s if read_s > stages["ride-along"] else None,  # else a short prompt is read in one piece
        provisional_s=stats.first_provisional_s,
        hidden_drafting_s=stats.hidden_drafting_s,
        hidden_inside_s=stats.hidden_inside_s,
        rounds_s=rounds,
        overhead_s=overhead,
        notes=answer.other_notes,
        lossy=None if stats.lossless else stats.rule,
        prompt_tokens=stats.prompt_tokens,
        busy_s=busy(answer.timeline),
        drafter_error=answer.drafter_error,
    )


def busy(timeline: Timeline) -> dict[str, float]:
    """Seconds in which something ran, for each lane of a timeline.

    >>> from crossdraft.engine.timeline import Span
    >>> busy(Timeline([Span("target", "encode", 0, 2), Span("drafter", "read", 0, 1), Span("target", "verify", 3, 4)]))
    {'target': 3.0, 'drafter': 1.0}
    """
    lanes = dict.fromkeys(span.lane for span in timeline.spans)
    return {
        lane: covered([span for span in timeline.spans if span.lane == lane], timeline.start, math.inf)
        for lane in lanes
    }


def close_all(methods: Iterable[BenchMethod]) -> None:
    """Stop every method."""
    for method in methods:
        method.close()


def cores_of(name: str, cores: Cores | None) -> Cores | None:
    """Cores of the method of this name, given the pair's `cores`.

    A method that drafts in the target's process has all of them, as for users: every method has the same hardware.

    >>> names = "target", "target-all", "hf-all", "event", "memory", "eagle2"
    >>> [str(cores_of(name, Cores((0,), (1,)))) for name in names]
    ['0', '0-1', '0-1', '0 + 1', '0-1', '0-1']
    """
    if cores is None or runs_in_process(name):
        return cores
    return Cores(cores.target if name in ON_TARGETS_CORES else cores.pair)


def options_of(name: str, models: Models, cores: Cores | None, *, process: bool = True) -> Options:
    """Options of our engine for a method."""
    own = cores_of(name, cores)
    with pinned(None if cores is None else cores.pair):  # a thread on the target's cores may name the drafter's
        return Options(
            placement="process" if process else "inline",
            device=models.device,
            draft_device=models.draft_device,
            quantize=models.quantize,
            draft_quantize=models.draft_quantize,
            compile=models.compiled,
            target_cores=None if own is None else own.target,
            draft_cores=None if own is None else own.draft or None,
            cache_bytes=0,
        )
