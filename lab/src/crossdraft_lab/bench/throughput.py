"""`crossdraft bench throughput`: N requests at once: our engine, the target alone, Hugging Face, llama.cpp and vLLM.

Every request is about a clip of its own, read from a file inside the clock, or a prompt of a file, which llama.cpp
answers, too; nothing is cached between requests. All contestants answer the same batches, interleaved, in balanced
order. Each may use all the cores that the pair uses; baselines are measured on one core as well, and a ratio is against
the faster of the two.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.assembly import assemble, decided
from crossdraft.checks import whole
from crossdraft.cli.cores import Cores
from crossdraft.comparisons import orders
from crossdraft.dtypes import dtype_name
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.options import Options
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.batches import BatchMethod, BatchRun, EngineBatch, PaddedBatch
from crossdraft_lab.bench.child_batches import ChildBatches, vllm_batches
from crossdraft_lab.bench.common import check_each_once, check_names, check_repeats
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.record import FigureTable, Tick
from crossdraft_lab.bench.measure import find_divergence
from crossdraft_lab.bench.serving.llama import LlamaBatches, LlamaFiles
from crossdraft_lab.bench.specs import LLAMA, VLLM, check_methods, spec_of
from crossdraft_lab.bench.statistics import Interval, ratio, ratio_per_token
from crossdraft_lab.bench.study import FigureColumn, figure_table
from crossdraft_lab.bench.workload import Item, Workload, counting, describe, items

SIZES = (1, 2, 4, 8, 16, 32)
ALL = "-all"  # behind the name of a contestant that computes on every core of the pair
BASELINES = ("target", "hf-batch", "hf-continuous", LLAMA, VLLM)
WARM_UPS = 3  # batches of each size: our engine learns the cost of drafting from them
FLOOR = 0.98  # least ratio of our engine to its own target in the same batches
HF_CONTINUOUS = (
    "hf-continuous feeds token ids alone: clips are encoded first, inside the clock, and its embedding layer looks "
    "their features up; the rest is its own."
)
MISSING = {
    LLAMA: "name its server and the target as GGUF: --llama-server, --gguf.",
    VLLM: "name the Python of an environment that has it: --vllm-python.",
}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Settings of a measurement of throughput.

    Args:
        models: the checkpoints, devices and dtypes.
        work: the questions; `pairs` follows from `sizes`. Of a file of prompts all `pairs` are asked, again and again.
        sizes: sizes of batches.
        drafter: spec of the drafter.
        repeats: number of batches of every size, each of other questions; small sizes get more.
        least: least number of requests for every size.
        cores: cores of the target's process and of the drafter's.
        vllm_python: interpreter of an environment with vLLM; `None` leaves it out.
        baselines: names out of `BASELINES`.
        prefill_chunk: setting of our engine; see `Options`.
        llama: llama.cpp's server, which is asked prompts; `None` leaves it out.
        warm_ups: batches of each size before the clock starts: our engine learns the cost of drafting from them.

    Raises:
        CrossdraftError: a drafter or a baseline that is unknown, a number that is too small, or too few prompts.
    """

    models: Models
    work: Workload
    sizes: tuple[int, ...] = SIZES
    drafter: str = "glance"
    repeats: int = 3
    least: int = 16
    cores: Cores | None = None
    vllm_python: Path | None = None
    baselines: tuple[str, ...] = BASELINES
    prefill_chunk: int | None = 0
    llama: LlamaFiles | None = None
    warm_ups: int = WARM_UPS

    def __post_init__(self) -> None:
        check_methods(("target",), (self.drafter,))
        check_names("contestant", self.baselines, BASELINES)
        check_repeats(self.repeats, "batch")
        for size in self.sizes:
            whole("A number of requests", size)
        check_each_once("number of requests", [str(size) for size in self.sizes])
        whole("The number of warm-ups", self.warm_ups, least=0)
        if self.llama is not None and self.work.prompts is None:
            raise CrossdraftError("llama.cpp is asked prompts, not clips; name a file of them by --prompts.")
        if self.work.prompts is not None and self.work.pairs < max(self.sizes):
            raise CrossdraftError(
                f"{self.work.prompts} has {self.work.pairs} prompts for {max(self.sizes)} requests at once; give more."
            )

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the baselines that can run."""
        words = self.work.prompts is not None
        can = {VLLM: self.vllm_python is not None, LLAMA: words and self.llama is not None, "hf-continuous": not words}
        return tuple(name for name in self.baselines if can.get(name, True))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all contestants."""
        more = self.cores is not None and self.cores.pair != self.cores.target
        each = [(name, name + ALL) if more else (name,) for name in self.others]
        return (self.drafter, *(name for pair in each for name in pair))

    def repeats_of(self, size: int) -> int:
        """Number of batches of `size` requests that are run: `repeats`, or more until `least` requests are asked."""
        return max(self.repeats, -(-self.least // size))

    @property
    def questions(self) -> int:
        """Number of questions that the largest size needs."""
        return max(size * self.repeats_of(size) for size in self.sizes)

    @property
    def runs(self) -> int:
        """Number of batches that are answered, warm-ups included: the steps of the progress bar."""
        return len(self.names) * sum(self.warm_ups + self.repeats_of(size) for size in self.sizes)

    def asked(self) -> tuple[list[Item], list[Item]]:
        """All questions, one batch after another, and those of a warm-up of the largest size."""
        if self.work.prompts is not None:
            return list(islice(cycle(items(self.work)), self.questions)), counting(self.work, max(self.sizes))
        held = replace(self.work, pairs=max(self.sizes), split="validation", first=0)
        return list(items(replace(self.work, pairs=self.questions))), list(items(held))


@dataclass
class SizeResults:
    """Batches of one size by contestant, in the order of the repeats, and the questions of each batch."""

    size: int
    items: list[list[Item]]
    runs: dict[str, list[BatchRun]] = field(default_factory=dict)

    def seconds(self, name: str) -> list[float]:
        """Seconds of each batch."""
        return [run.seconds for run in self.runs[name]]

    def tokens(self, name: str) -> list[int]:
        """Tokens of each batch."""
        return [run.tokens for run in self.runs[name]]

    def tokens_per_s(self, name: str) -> Interval:
        """Tokens per second over all batches; the interval draws batches."""
        return ratio(self.tokens(name), self.seconds(name))

    def faster(self, baseline: str) -> str:
        """Name of a baseline's faster form, on one core or on all."""
        return max(
            (name for name in (baseline, baseline + ALL) if name in self.runs),
            key=lambda name: self.tokens_per_s(name).value,
        )

    def ratio(self, name: str, against: str) -> Interval:
        """Tokens per second of one contestant over those of another."""
        return ratio_per_token(self.seconds(against), self.tokens(against), self.seconds(name), self.tokens(name))


def run_throughput(plan: Throughput, tick: Tick = lambda _: None) -> Json:
    """Measure all contestants, interleaved; return plain values.

    Raises:
        CrossdraftError: a model cannot be loaded, or a contestant's process dies.
    """
    found, start = environment(), time.perf_counter()
    with pinned(None if plan.cores is None else plan.cores.pair):
        target = plan.models.load_target()
        asked, warm_ups = plan.asked()
        made = dict(_methods(plan, target))
        try:
            results = [_measure(plan, size, made, asked, warm_ups, tick) for size in plan.sizes]
            others = {name: one for name, one in made.items() if isinstance(one, ChildBatches | LlamaBatches)}
            about = {name: dict(method.about) for name, method in others.items()}
        finally:
            for method in made.values():
                method.close()
        expected = _alone(target, asked)
        rows = [row for result in results for row in rows_of(result, plan.drafter, expected, target)]
    against = _against(plan, results)
    over_target = [ratio for _, name, _, ratio in against if name == "target"]
    return {
        "environment": found,
        "seconds": round(time.perf_counter() - start, 1),
        "workload": {**describe(plan.work), "pairs": plan.questions},
        "repeats": {str(size): plan.repeats_of(size) for size in plan.sizes},
        "cores": None if plan.cores is None else str(plan.cores),
        "drafter": plan.drafter,
        "prefill_chunk": plan.prefill_chunk,
        "about": about,
        "rows": rows,
        "against": [
            {"requests": size, "baseline": baseline, "faster": name, **ratio.to_json()}
            for size, baseline, name, ratio in against
        ],
        "least_over_target": min(over_target, key=lambda one: one.value).to_json(),
    }


def _measure(
    plan: Throughput,
    size: int,
    methods: Mapping[str, BatchMethod],
    asked: Sequence[Item],
    warm_ups: Sequence[Item],
    tick: Tick,
) -> SizeResults:
    batches = [list(asked[number * size : (number + 1) * size]) for number in range(plan.repeats_of(size))]
    found = SizeResults(size, batches, {name: [] for name in methods})
    turns = orders(list(methods))
    for number, batch in enumerate([list(warm_ups[:size])] * plan.warm_ups + batches):
        for name in next(turns):
            method = methods[name]
            with pinned(None if method.cores is None else method.cores.target):
                run = method.answer(batch)
            if number >= plan.warm_ups:
                found.runs[name].append(run)
            tick(f"{size} requests, {name}")
    return found


def _methods(plan: Throughput, target: Target) -> Iterator[tuple[str, BatchMethod]]:
    """Make the contestants by name, in the order of `names`."""
    plain = plan.models.load_target(packed=False) if "hf-batch" in plan.others else target
    words = plan.work.prompts is not None
    for name in plan.names:
        own = None if plan.cores is None else Cores(plan.cores.pair if name.endswith(ALL) else plan.cores.target)
        match name.removesuffix(ALL):
            case "target":
                yield name, EngineBatch(target, None, _options(plan, own), own)
            case "hf-batch":
                yield name, PaddedBatch(plain, own)
            case "hf-continuous":
                yield name, ChildBatches(name, _hf_continuous(plan, target, own), own and own.target)
            case "vllm" if plan.vllm_python is not None:
                cores = None if own is None else own.target
                yield name, vllm_batches(target, plan.models.target, plan.vllm_python, cores, words=words, name=name)
            case "llama.cpp" if plan.llama is not None:
                yield name, LlamaBatches(target, plan.llama, own)
            case _:
                yield name, _engine(plan, target)


def _engine(plan: Throughput, target: Target) -> EngineBatch:
    """Build our engine, with the drafter placed as `placement=auto` decides."""
    spec = plan.models.named(spec_of(plan.drafter))
    options = decided(_options(plan, plan.cores), spec)
    runner = assemble(spec, plan.models.context(target), target, options)
    own = plan.cores
    if own is not None and not runner.workers:  # all of it is in this process
        own = Cores(own.pair)
    return EngineBatch(target, runner, options, own)


def _options(plan: Throughput, cores: Cores | None) -> Options:
    models = plan.models
    return Options(
        device=models.device,
        draft_device=models.draft_device,
        dtype=models.dtype,
        draft_dtype=models.draft_dtype,
        target_cores=None if cores is None else cores.target,
        draft_cores=None if cores is None else cores.draft or None,
        cache_bytes=0,
        prefill_chunk=plan.prefill_chunk,
    )


def _hf_continuous(plan: Throughput, target: Target, own: Cores | None) -> list[str]:
    """Module of Hugging Face's continuous batching, and its arguments: our target, its device and its dtype."""
    cores = [] if own is None else [",".join(map(str, own.target))]
    arguments = [plan.models.target, str(target.device), dtype_name(target.model.dtype), *cores]
    return ["crossdraft_lab.bench.hf_continuous", *arguments]


def _alone(target: Target, asked: Sequence[Item]) -> dict[int, tuple[int, ...]]:
    """Answer with the target alone, one question at a time; return tokens by the scene's seed."""
    decoder = DecodeLoop(target)
    each = {item.seed: item.request for item in asked}
    return {seed: decoder.generate([request])[0].tokens for seed, request in each.items()}


def rows_of(found: SizeResults, engine: str, expected: Mapping[int, Sequence[int]], target: Target) -> Iterator[Json]:
    """Yield the figures of every contestant at one size.

    Times count from a request's batch arrival; `identical` counts answers that are the target's own.
    """
    for name, runs in found.runs.items():
        answers = [
            (item, one)
            for batch, run in zip(found.items, runs, strict=True)
            for item, one in zip(batch, run.served, strict=True)
        ]
        others = [(item, one) for item, one in answers if tuple(expected[item.seed]) != one.tokens]
        gaps = (find_divergence(target, item, expected[item.seed], one.tokens) for item, one in others)
        yield {
            "requests": found.size,
            "name": name,
            "tokens_per_s": found.tokens_per_s(name).to_json(),
            "e2e_ms": _spread([one.total_s for _, one in answers]),
            "ttft_ms": _spread([one.ttft_s for _, one in answers]),
            "identical": f"{len(answers) - len(others)}/{len(answers)}",
            "divergences": [gap for gap in gaps if gap is not None],
            "engine_over_it": found.ratio(engine, name).to_json(),
        }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile in milliseconds."""
    median, last = np.percentile(np.asarray(seconds) * 1e3, [50, 95])
    return {"median": round(float(median), 2), "p95": round(float(last), 2)}


def _against(plan: Throughput, results: Sequence[SizeResults]) -> tuple[tuple[int, str, str, Interval], ...]:
    """Ratios of our engine to the faster form of every baseline, at every size."""
    return tuple(
        (result.size, baseline, name := result.faster(baseline), result.ratio(plan.drafter, name))
        for result in results
        for baseline in plan.others
    )


def results_table(report: Json) -> FigureTable:
    """Table of the figures, for people."""
    drafter = report["drafter"]
    columns = (
        FigureColumn("", "contestant", lambda row: row["name"]),
        FigureColumn("", "requests", lambda row: row["requests"]),
        FigureColumn("", "tokens/s", lambda row: Interval.from_json(row["tokens_per_s"]).shown(digits=0)),
        FigureColumn("", "E2E median", lambda row: f"{row['e2e_ms']['median']:.0f} ms"),
        FigureColumn("", "p95", lambda row: f"{row['e2e_ms']['p95']:.0f} ms"),
        FigureColumn("", "TTFT", lambda row: f"{row['ttft_ms']['median']:.0f} ms"),
        FigureColumn("", "identical", lambda row: row["identical"]),
        FigureColumn(
            "",
            f"{drafter} ÷ it",
            lambda row: "" if row["name"] == drafter else Interval.from_json(row["engine_over_it"]),
        ),
    )
    words = report["workload"]["prompts"] is not None
    title = f"N requests at once, each {'a prompt' if words else 'about a clip'} of its own"
    return figure_table(title, columns, [(row,) for row in report["rows"]])


def lines(plan: Throughput, report: Json) -> list[str]:
    """Sentences on the cores used, the settings of other programs, and whether drafting ever lost."""
    cores = "not restricted" if plan.cores is None else f"{plan.cores} ({ALL[1:]}: all of them)"
    least = Interval.from_json(report["least_over_target"])
    beyond = "" if least.value >= FLOOR else f", below {FLOOR}: here drafting costs more than it saves"
    shown = least.shown("batches", 3)
    asked = "clips from files" if plan.work.prompts is None else "in words"
    said = [
        f"Cores: {cores}. Greedy, {asked}, no cache between requests.",
        f"Least ratio over the target alone in the same batches (on one core or on all): {shown}{beyond}.",
    ]
    if "hf-continuous" in plan.others:
        said.append(HF_CONTINUOUS)
    gaps = [gap for row in report["rows"] for gap in row["divergences"]]
    if gaps:
        near, most = sum(gap["near_tie"] for gap in gaps), max(gap["top2_gap"] for gap in gaps)
        said.append(
            f"{len(gaps)} answers differ from the target's own, {near} of them first at a near-tie; top-2 logit gaps "
            f"there: at most {most:.2g}."
        )
    said += [f"{name}: {about}" for name, about in report["about"].items()]
    missing = [VLLM] if plan.work.prompts is None else MISSING
    left = [name for name in missing if name in plan.baselines and name not in plan.others]
    return said + [f"{name} was left out; {MISSING[name]}" for name in left]
