"""`crossdraft bench`: every method on the same questions, interleaved; peak memory of each in a process of its own.

What is measured is kept pair by pair where a folder is named: a run that was cut off goes on there.
"""

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from crossdraft.cli.cores import Cores
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import Budget
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import only_process
from crossdraft.methods import METHODS as DRAFTERS
from crossdraft_lab.bench.assembly import Models, cores_of
from crossdraft_lab.bench.child_batches import ChildMethod, vllm_batches
from crossdraft_lab.bench.common import check_repeats
from crossdraft_lab.bench.environment import environment, peak_cuda_mib, peak_rss_of
from crossdraft_lab.bench.experiments.record import Setting, Tick, UnitResult
from crossdraft_lab.bench.experiments.runs import RunLine, RunsFile
from crossdraft_lab.bench.forking import forking, start_method
from crossdraft_lab.bench.measure import BenchMethod, Results, Run, answer_once, divergences
from crossdraft_lab.bench.serving.llama import LlamaFiles, LlamaServer
from crossdraft_lab.bench.specs import HUGGING_FACE, METHODS, PEERS, VLLM, check_methods, spec_of
from crossdraft_lab.bench.study import Study, pooled
from crossdraft_lab.bench.summary import BenchReport, summarise
from crossdraft_lab.bench.traces import Trace
from crossdraft_lab.bench.variants import Variant, make_variant
from crossdraft_lab.bench.workload import Item, Workload, describe, items, workload_in_words
from crossdraft_lab.folders import make_folder

WARM_UPS = 3
MEMORY = "memory of "  # begins the keys of units that are no pairs
MACHINE = ("cpu", "cpus", "gpus", "crossdraft", "commit", "torch", "transformers")  # what a run that goes on shares


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
        llama: llama.cpp's server as a further contestant; `None` = it is left out.
        vllm_python: interpreter of an environment with vLLM, a further contestant; `None` = it is left out.
        out: folder for the runs; what an earlier run of the same suite left there is not measured again.
        minutes: no further pair is begun that might end later than that; `None` = all are answered.

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
    llama: LlamaFiles | None = None
    vllm_python: Path | None = None
    out: Path | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        check_methods(self.methods, self.drafters)
        check_repeats(self.repeats)
        if self.warm_ups < 0:
            raise CrossdraftError(f"The number of warm-ups is {self.warm_ups}; give 0 or more.")
        if self.record and ("target" not in self.methods or self.work.temperature):
            raise CrossdraftError(
                "There is nothing to record: only greedy answers of the method 'target' are; name it, at temperature 0."
            )
        if self.record and self.out is not None:
            raise CrossdraftError("Answers are recorded by one whole run; leave out --record or --out.")
        if self._peers and self.work.temperature:
            raise CrossdraftError("Other programs draw other tokens from the same distribution; compare them greedily.")

    @property
    def names(self) -> tuple[str, ...]:
        """All methods, the specs of further drafters, and other programs' servers."""
        return (*self.methods, *self.drafters, *(one.name for one in self._peers))

    @property
    def _peers(self) -> tuple[Variant, ...]:
        llama = () if self.llama is None else self.llama.variants()
        if self.vllm_python is None:
            return llama
        return (*llama, Variant(VLLM, make=partial(_vllm, self.vllm_python)))

    @property
    def runs(self) -> int:
        """Number of answers that the measurement asks for: the steps of the progress bar."""
        return self.study.runs + len(self.footprint_names)

    @property
    def footprint_names(self) -> tuple[str, ...]:
        """Methods whose memory is measured in a process of its own; a server has one in any case."""
        return tuple(name for name in self.names if name not in PEERS) if self.memory else ()

    @property
    def study(self) -> Study:
        """Study of the methods; no method meets a warm-up again, if a file of prompts has enough of them."""
        variants = (*map(Variant, (*self.methods, *self.drafters)), *self._peers)
        return Study(variants, self.work, block=1, repeats=self.repeats, warm_ups=self.warm_ups, models=self.models)

    def settings(self, machine: Mapping[str, object]) -> dict[str, Any]:
        """All that makes two runs comparable, as plain values; the number of pairs may grow."""
        work = {name: value for name, value in describe(self.work).items() if name != "pairs"}
        if self.work.prompts is not None:
            work["prompts"] = hashlib.sha256(self.work.prompts.read_bytes()).hexdigest()
        return {
            **{name: machine[name] for name in MACHINE},
            **work,
            "models": asdict(self.models), "llama": str(self.llama), "vllm": str(self.vllm_python),
            "methods": list(self.names), "cores": str(self.cores), "repeats": self.repeats, "warm_ups": self.warm_ups,
        }  # fmt: skip


def _vllm(python: Path, target: Target, models: Models) -> ChildMethod:
    """Start vLLM on the cores of the calling thread."""
    return ChildMethod(vllm_batches(target, models.target, python, available_cores(), words=True))


def run_suite(suite: Suite, tick: Tick = lambda _: None) -> BenchReport:
    """Measure, pinned to the cores of the pair; each method answers on its own share of them.

    Raises:
        CrossdraftError: a model that cannot be loaded; or the folder holds runs of another suite, machine or version,
            cannot be written, or is being filled by another process.
    """
    if suite.out is not None:
        make_folder(suite.out)
    alone = nullcontext() if suite.out is None else only_process(suite.out)
    with alone, forking([__name__]), pinned(None if suite.cores is None else suite.cores.pair):
        return _run(suite, tick)


class Units:
    """Results of a suite's units, those of earlier runs included; each is written to the folder as it comes."""

    def __init__(self, suite: Suite, machine: Mapping[str, object]) -> None:
        self._file = None if suite.out is None else RunsFile(suite.out, "bench", suite.settings(machine))
        self._machine, self._last = machine, time.perf_counter()
        lines = [] if self._file is None else self._file.lines
        self.done = {line.key: line.result for line in lines}
        self.starts = max((unit.found.get("start", 0) for unit in self.done.values()), default=0)
        self._start = self.starts + 1  # each process that answers pairs has a number
        self._until = math.inf if suite.minutes is None else time.perf_counter() + 60 * suite.minutes

    @property
    def late(self) -> bool:
        """True if a further pair, as long as the longest one so far, might end too late."""
        pairs = [unit.found["methods"].values() for key, unit in self.done.items() if not key.startswith(MEMORY)]
        took = [sum(run["total_s"] for each in pair for runs in each for run in runs) for pair in pairs]
        return time.perf_counter() + max(took, default=0.0) > self._until

    def add(self, unit: UnitResult) -> None:
        """Keep a unit's result."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        if not unit.key.startswith(MEMORY):
            self.starts, unit = self._start, replace(unit, found={**unit.found, "start": self._start})
        self.done[unit.key] = unit
        if self._file is not None:
            where, took = (self._file.config, unit.seeds, self._machine), round(seconds, 3)
            self._file.append(RunLine("bench", unit.key, *where, took, unit.found))


def _run(suite: Suite, tick: Tick) -> BenchReport:
    found = environment()  # before this process itself is the load
    units, study = Units(suite, found), suite.study
    for key in study.keys:
        for name in suite.names * (suite.repeats if key in units.done else 0):
            tick(name)
    _add_footprints(suite, units, tick)
    pending, traces = [key for key in study.keys if key not in units.done], ()
    if pending and not units.late:
        with study.loaded(Setting(suite.cores, Path())) as (target, methods):
            warm = study.warm_up_items
            for key in pending:
                if units.late:
                    break
                asked = list(items(study.work_of(key)))
                unit, warm = study.answer_block(key, asked, methods, target, warm, tick), []
                units.add(_with_more(unit, asked, target, methods))
        if suite.record:
            traces = traces_of(suite, _results(suite, units), list(items(suite.work)), target)
    return _report(suite, found, units, traces)


def _add_footprints(suite: Suite, units: Units, tick: Tick) -> None:
    """Measure the memory of the methods that have no result yet."""
    missing = [name for name in suite.footprint_names if MEMORY + name not in units.done]
    first = [*suite.study.warm_up_items, *items(replace(suite.work, pairs=1))][0]
    for name in missing:
        if not units.late:
            found = measure_footprints((name,), suite.models, suite.cores, first, tick)
            units.add(UnitResult(MEMORY + name, (), found[name]))


def _with_more(
    unit: UnitResult, asked: Sequence[Item], target: Target, methods: Mapping[str, BenchMethod]
) -> UnitResult:
    """Add to a unit what only its process can tell: divergences, the target's dtype, and what servers say."""
    servers = {name: one for name, one in methods.items() if isinstance(one, LlamaServer | ChildMethod)}
    more = {
        "divergences": divergences(pooled([unit]).results, asked, target),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "prompt_tokens": len(target.prepare(asked[0].request)),
        "servers": {name: {**one.about, "peak_mib": peak_rss_of(*one.workers)} for name, one in servers.items()},
    }
    return replace(unit, found={**unit.found, **more})


def _results(suite: Suite, units: Units) -> Results:
    return pooled([units.done[key] for key in suite.study.keys if key in units.done]).results


def _report(suite: Suite, found: Mapping[str, object], units: Units, traces: tuple[Trace, ...]) -> BenchReport:
    """Make the report of the pairs that have been answered, if there are any."""
    keys = suite.study.keys
    done = [units.done[key] for key in keys if key in units.done]
    if not done:
        raise CrossdraftError("No pair was answered in that time; give more --minutes.")
    results, first = _results(suite, units), done[0].found
    kinds = [pair["kind"] for unit in done for pair in unit.found["pairs"]]
    differing = None if first["divergences"] is None else {
        name: [one for unit in done for one in unit.found["divergences"][name]] for name in suite.names
    }  # fmt: skip
    runs = results.of("target" if "target" in results.runs else next(iter(results.runs)))
    mean = sum(len(run.tokens) for run in runs) / len(runs)
    words = [*workload_in_words(suite.work, kinds, mean), *cores_in_words(suite.names, suite.cores)]
    said = {name: [{**unit.found["servers"][name], "peak_mib": 0} for unit in done] for name in first["servers"]}
    if changed := [name for name, abouts in said.items() if any(about != abouts[0] for about in abouts)]:
        raise CrossdraftError(f"{changed[0]} is another build or model than in earlier runs; name another --out.")
    words += [f"{name}: {about}" for name, about in first["servers"].items()]
    if units.starts > 1:
        words.append(f"In {units.starts} runs; what a drafter learns from answers, it learned in each anew.")
    if len(done) < len(keys):
        words.append(f"{len(done)} of {len(keys)} pairs so far; the same command goes on.")
    footprints = {
        name: units.done[MEMORY + name].found for name in suite.footprint_names if MEMORY + name in units.done
    }
    for name in first["servers"]:
        footprints[name] = {"total_mib": max(unit.found["servers"][name]["peak_mib"] or 0.0 for unit in done)}
    return BenchReport(
        environment={**found, **placement_of(suite), "dtype": first["dtype"], "servers": first["servers"]},
        workload={
            **describe(suite.work),
            "pairs": len(done),
            "of_pairs": len(keys),
            "repeats": suite.repeats,
            "warm_ups": suite.warm_ups,
            "prompt_tokens": first["prompt_tokens"],
            "mean_tokens": round(mean, 1),
            "in_words": words,
        },
        methods=summarise(results, kinds, differing, greedy=not suite.work.temperature),
        traces=traces,
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
        "draft_quantize": models.draft_quantize,
        "compiled": models.compiled,
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
