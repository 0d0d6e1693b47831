"""`crossdraft bench`: every method on the same questions, interleaved; peak memory of each in a process of its own."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from crossdraft.cli.cores import Cores
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import Budget
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS as DRAFTERS
from crossdraft_lab.bench.assembly import Models, cores_of
from crossdraft_lab.bench.common import check_repeats
from crossdraft_lab.bench.environment import environment, peak_cuda_mib, peak_rss_of
from crossdraft_lab.bench.experiments.record import Setting, Tick
from crossdraft_lab.bench.forking import forking, start_method
from crossdraft_lab.bench.measure import Results, Run, answer_once, measure
from crossdraft_lab.bench.specs import HUGGING_FACE, METHODS, check_methods, spec_of
from crossdraft_lab.bench.study import Study
from crossdraft_lab.bench.summary import BenchReport, summarise
from crossdraft_lab.bench.traces import Trace
from crossdraft_lab.bench.variants import Variant, make_variant
from crossdraft_lab.bench.workload import Item, Workload, describe, items, workload_in_words

WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Suite:
    """Settings of a measurement: methods, questions, and numbers of runs.

    Args:
        methods: names out of `ALL_METHODS`.
        drafters: specs of further drafters, which are reported under their specs.
        models: the checkpoints, devices and dtypes.
        work: the questions.
        repeats: runs of each pair.
        cores: cores of the target's process and of the drafter's; `None` leaves the affinity as it is (GPUs).
        warm_ups: number of pairs whose runs are thrown away; they come from the validation split.
        memory: measure the peak memory of each method first.
        record: keep the target's answers as traces; with the method `event`, also the answers of its model alone.

    Raises:
        CrossdraftError: as `check_methods`, a number is too small, or there is nothing to record; raised before any
            model is loaded.
    """

    models: Models
    work: Workload
    methods: tuple[str, ...] = METHODS
    repeats: int = 3
    cores: Cores | None = None
    warm_ups: int = WARM_UPS
    drafters: tuple[str, ...] = ()
    memory: bool = True
    record: bool = False

    def __post_init__(self) -> None:
        check_methods(self.methods, self.drafters)
        check_repeats(self.repeats)
        if self.warm_ups < 0:
            raise CrossdraftError(f"The number of warm-ups is {self.warm_ups}; give 0 or more.")
        if self.record and ("target" not in self.methods or self.work.temperature):
            raise CrossdraftError(
                "There is nothing to record: only greedy answers of the method 'target' are; name it, at temperature 0."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All methods, and the specs of further drafters."""
        return (*self.methods, *self.drafters)

    @property
    def runs(self) -> int:
        """Number of answers that the measurement asks for: the steps of the progress bar."""
        return self.study.runs + len(self.names) * self.memory

    @property
    def study(self) -> Study:
        """Study of the methods; warm-ups are of another split, so that no method meets a question again."""
        variants, repeats = tuple(map(Variant, self.names)), self.repeats
        return Study(variants, self.work, repeats=repeats, warm_ups=self.warm_ups, models=self.models)


def run_suite(suite: Suite, tick: Tick = lambda _: None) -> BenchReport:
    """Measure, pinned to the cores of the pair; each method answers on its own share of them.

    Raises:
        CrossdraftError: a model that cannot be loaded.
    """
    with forking([__name__]), pinned(None if suite.cores is None else suite.cores.pair):
        return _run(suite, tick)


def _run(suite: Suite, tick: Tick) -> BenchReport:
    found = environment()  # before this process itself is the load
    warm_ups, pairs = suite.study.warm_up_items, list(items(suite.work))
    footprints = {}
    if suite.memory:
        footprints = measure_footprints(suite.names, suite.models, suite.cores, (warm_ups or pairs)[0], tick)
    with suite.study.loaded(Setting(suite.cores, Path())) as (target, methods):
        results = measure(methods, pairs, suite.repeats, warm_ups, tick)
    runs = results.of("target" if "target" in results.runs else next(iter(results.runs)))
    mean = sum(len(run.tokens) for run in runs) / len(runs)
    return BenchReport(
        environment={**found, **placement_of(suite), "dtype": str(target.model.dtype).removeprefix("torch.")},
        workload={
            **describe(suite.work),
            "repeats": suite.repeats,
            "warm_ups": suite.warm_ups,
            "prompt_tokens": len(target.prepare(pairs[0].request)),
            "mean_tokens": round(mean, 1),
            "in_words": [*workload_in_words(suite.work, pairs, mean), *cores_in_words(suite.names, suite.cores)],
        },
        methods=summarise(results, pairs, target),
        traces=traces_of(suite, results, pairs, target) if suite.record else (),
        footprints=footprints,
        cores={name: cores_of(name, suite.cores) for name in suite.names},
    )


def traces_of(suite: Suite, results: Results, pairs: Sequence[Item], target: Target) -> tuple[Trace, ...]:
    """Record the target's own answers, from the first run of each pair, for `replay`."""
    drafter = suite.models.drafter(suite.models.event, target)() if "event" in suite.methods else None
    return tuple(
        Trace(
            str(item.seed),
            item.request.prompt,
            runs[0].tokens,
            () if drafter is None else written_alone(drafter, item.request),
            _stages_ms(runs[0]),
        )
        for item, runs in zip(pairs, results.runs["target"], strict=True)
    )


def written_alone(drafter: IndependentDrafter, request: Request) -> tuple[int, ...]:
    """Generate an answer with the drafter alone; the drafter must have a language model of its own."""
    (state,) = drafter.begin([request])
    (draft,) = drafter.propose([state], [Budget(request.token_limit)])
    drafter.end([state])
    return draft.tree.tokens


def _stages_ms(run: Run) -> tuple[float, ...]:
    """Milliseconds of loading, preprocessing, encoding, prefill and decoding."""
    times = {name: 1e3 * seconds for name, seconds in run.stages_s.items()}
    prefill = times.get("prefill", 0.0) + times.get("ride-along", 0.0)
    decode = 1e3 * run.total_s - sum(times.get(name, 0.0) for name in ("prepare", "encode")) - prefill
    return 0.0, times.get("prepare", 0.0), times.get("encode", 0.0), prefill, max(0.0, decode)


def placement_of(suite: Suite) -> dict[str, object]:
    """Models, and the devices and cores that they run on."""
    models, cores = suite.models, suite.cores
    return {
        "models": {"target": models.target, "event": models.event, "blind": models.blind},
        "drafters": {name: str(spec_of(name)) for name in suite.methods if name in DRAFTERS},
        "device": models.device,
        "draft_device": models.draft_device,
        "quantize": models.quantize,
        "target_cores": None if cores is None else list(cores.target),
        "draft_cores": None if cores is None else list(cores.draft),
        "cores_shared": None if cores is None else cores.shared,
    }


def cores_in_words(names: Sequence[str], cores: Cores | None) -> list[str]:
    """Sentences that say which methods may use which cores."""
    if cores is None:
        return ["Cores: not restricted; every method may use any."]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(str(cores_of(name, cores)), []).append(name)
    each = "; ".join(f"{own}: {', '.join(members)}" for own, members in groups.items())
    lines = [f"Cores (of the target, + of a drafter's own process): {each}."]
    if any(own is not None and own.draft for own in (cores_of(name, cores) for name in names)):
        lines.append("A drafter's cores serve its target as well while the drafter has nothing to do.")
    return lines


def measure_footprints(
    names: Sequence[str], models: Models, cores: Cores | None, item: Item, tick: Tick = lambda _: None
) -> dict[str, dict[str, float | None]]:
    """Measure the peak memory of each method in MiB, one after another, each in a new process without other methods.

    None where the system does not say; `drafter_mib` is None if the drafter has no process, `cuda_mib` without a GPU.

    Args:
        names: names of methods, or specs of drafters.
        models, cores: as in `make_variant`.
        item: the question that each method answers once.
        tick: called with the name after each method.

    Raises:
        CrossdraftError: a process died.
    """
    found = {}
    for name in names:
        try:
            with ProcessPoolExecutor(1, mp_context=get_context(start_method())) as pool:
                found[name] = pool.submit(_footprint, name, models, cores, item).result()
        except BrokenProcessPool as error:  # as where the system has no memory left
            raise CrossdraftError(
                f"The process that measures the memory of {name} died; see its message above, or use --no-memory."
            ) from error
        tick(name)
    return found


def _footprint(name: str, models: Models, cores: Cores | None, item: Item) -> dict[str, float | None]:
    """Measure a method's memory in the new process; see `summary.HOW`."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    with pinned(None if cores is None else cores.pair):
        target = models.load_target(packed=name not in HUGGING_FACE)
        method = make_variant(Variant(name), target, models, cores)
        try:
            answer_once(method, item)
            # The kernel's peak of each program since its start. `getrusage` would also count what a child shared with
            # its parent before it became a program of its own.
            drafters = [peak for worker in method.workers if (peak := peak_rss_of(worker)) is not None]
            own, others = peak_rss_of(os.getpid()), round(sum(drafters), 1) if drafters else None
            total = None if own is None else own + (others or 0.0)
            return {"total_mib": total, "target_mib": own, "drafter_mib": others, "cuda_mib": peak_cuda_mib()}
        finally:
            method.close()
