"""Experiment 2: where the time of an answer goes, stage by stage, and what two cores save against sequential work."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossdraft.engine.target import Target
from crossdraft_lab.bench.charts import BarPart, StackedBar, stacked_bars
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, UnitResult
from crossdraft_lab.bench.measure import BenchMethod, Run
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.study import ALL, OWN, Answers, Study, faults_of, plain, runs_of, sure, tenths
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload, items

# stage: (style of the palette, the engine's stages that it sums); `prepare` is split into load and preprocess
STAGES = {
    "load": ("preprocess", ()),
    "preprocess": ("border", ()),
    "encode": ("encoder", ("encode",)),
    "prefill": ("prefill", ("prefill", "ride-along")),
    "draft": ("draft", ("draft",)),
    "verify": ("verify", ("verify",)),
    "overhead": ("parallel-draft", ("communication", "engine", "other")),
}
BEFORE = ("load", "preprocess", "encode", "prefill")
CLOCKED = 3  # times that a clip is prepared by itself
SEQUENTIAL = "event, sequential"  # drafts before the prefill, in the target's process and on its core


@dataclass(frozen=True, slots=True)
class BreakdownConfig:
    """Methods, and the number of pairs; clips are read from files within the measured time."""

    methods: tuple[str, ...] = (OWN, ALL, SEQUENTIAL, "event", "glance", "eaglevlm")
    pairs: int = 32
    block: int = 4
    repeats: int = 2
    warm_ups: int = 3
    max_new_tokens: int = 96


def studies(config: BreakdownConfig, folder: Path | None = None) -> list[Study]:
    """Study of all methods; each block also measures the share of loading in the target's preparation of clips."""
    work = Workload(config.pairs, max_new_tokens=config.max_new_tokens, files=folder and folder / "clips")
    variants = tuple(map(variant_of, config.methods))
    study = Study(variants, work, (), config.block, config.repeats, config.warm_ups)

    @contextmanager
    def loading(key: str, made: Mapping[str, BenchMethod], target: Target) -> Iterator[dict[str, Any]]:
        found = dict[str, Any]()
        yield found
        found["loading"] = loading_share(study.work_of(key), target)

    return [replace(study, more=loading)]


def variant_of(name: str) -> Variant:
    """The method of a name."""
    if name == SEQUENTIAL:
        return Variant(name, "event", options={"placement": "inline", "hidden": "before"}, one_core=True)
    return Variant(name)


def loading_share(work: Workload, target: Target) -> float:
    """Share of a clip's preparation that is saved when its frames are in memory already."""
    decoded = items(replace(work, files=None))
    clocked = [
        (_prepare_s(target, item.request), _prepare_s(target, shown.request))
        for item, shown in zip(items(work), decoded, strict=True)
    ]
    whole, rest = (sum(each) for each in zip(*clocked, strict=True))
    return max(0.0, 1.0 - rest / whole)


def _prepare_s(target: Target, request: Any) -> float:
    """Time in seconds to prepare a request; the least of several runs."""
    least = float("inf")
    for _ in range(CLOCKED):
        start = time.perf_counter()
        target.prepare(request)
        least = min(least, time.perf_counter() - start)
    return least


def stages_ms(found: Answers, name: str, loading: float) -> dict[str, Interval]:
    """Mean milliseconds of each stage of `STAGES`; they add up to the mean time of an answer."""
    prepare = found.stage(name, "prepare").scaled(1e3)
    times = {stage: found.stage(name, *parts).scaled(1e3) for stage, (_, parts) in STAGES.items() if parts}
    return {"load": prepare.scaled(loading), "preprocess": prepare.scaled(1 - loading), **times}


def overlap(found: Answers, name: str) -> dict[str, Interval]:
    """Mean milliseconds of an answer: work summed over both lanes, wall time, and the least that must be hidden.

    Hidden is the work of one lane that ran while the other lane worked.
    """

    def lanes(run: Run, *named: str) -> float:
        return sum(run.busy_s.get(lane, 0.0) for lane in named)

    more = found.mean_of(name, lambda run: lanes(run, "target", "drafter") - run.total_s)
    means = {
        "target": found.mean_of(name, lambda run: lanes(run, "target")),
        "drafter": found.mean_of(name, lambda run: lanes(run, "drafter")),
        "sequential": found.mean_of(name, lambda run: lanes(run, "target", "drafter")),
        "wall": found.mean(name, "total_s"),
        "hidden": replace(more, value=max(0.0, more.value), low=max(0.0, more.low), high=max(0.0, more.high)),
    }
    return {lane: one.scaled(1e3) for lane, one in means.items()}


def summarise(config: BreakdownConfig, units: Sequence[UnitResult]) -> Findings:
    """Summarise the stages, and sums of sequential work beside wall times."""
    (study,) = studies(config)
    found, shares = study.pooled(units), [unit.found["loading"] for unit in units]
    loading = ratio(shares, [1.0] * len(shares))
    stages = {name: stages_ms(found, name, loading.value) for name in found.names}
    lanes = {name: overlap(found, name) for name in found.names}
    speedups = {name: found.speedup(name) for name in found.names}
    alone, drafting = found.alone, [name for name in found.names if name not in (OWN, ALL)]
    reading = {name: sum(stages[name][stage].value for stage in BEFORE) for name in stages}
    share = found.reading_share(alone)
    best = max(drafting, key=lambda name: speedups[name].value)
    worse = [name for name in drafting if reading[name] > 1.05 * reading[alone]]
    wall, hidden = (lanes[best][part].shown(digits=0) for part in ("wall", "hidden"))
    return Findings(
        found=(
            f"Reading ({', '.join(BEFORE)}) is {share.percent()} of an answer of {alone}, "
            f"{lanes[alone]['wall'].shown(digits=0)} ms. {best} takes {wall} ms, {speedups[best]} times as fast; "
            f"{hidden} ms of work passed on one core while the other one worked."
        ),
        sure=sure(found, config.repeats),
        tables=(
            FigureTable(
                "Mean milliseconds of an answer by stage",
                ("", *STAGES, "wall", f"× {alone}"),
                tuple(
                    (name, *map(tenths, (*stages[name].values(), lanes[name]["wall"])), str(speedups[name]))
                    for name in found.names
                ),
                "On the target's lane: draft is the drafter's computing that the target waited for, overhead the "
                "engine's own part, the exchange with the drafter's process, and what is in no stage. Loading is told "
                "from preprocessing by preparing the same clips from memory as well; it is "
                f"{loading.percent()} of preparing them, drawn over blocks.",
            ),
            FigureTable(
                "Both lanes: the sequential sum of their work beside the wall",
                ("", "target busy, ms", "drafter busy, ms", "sequential sum, ms", "wall, ms", "hidden, ms"),
                tuple((name, *map(tenths, one.values())) for name, one in lanes.items()),
                f"'{SEQUENTIAL}' is the drafter event on the target's core, drafting before the prefill: its wall is "
                "the sum as measured.",
            ),
        ),
        figure=stacked_bars(
            "Mean time of an answer by stage",
            [
                StackedBar(name, tuple(BarPart(stage, STAGES[stage][0], one.value) for stage, one in each.items()))
                for name, each in stages.items()
            ],
            "ms",
        ),
        figures=plain(
            {
                "stages_ms": stages,
                "speedup": speedups,
                "against": alone,
                "reading_share": share,
                "lanes_ms": lanes,
                "equal": {name: found.equal(name) for name in found.names},
            }
        ),
        negative=(f"Reading takes longer than in {alone} beside a drafter: {'; '.join(worse)}.",) if worse else (),
        faults=faults_of([(study, found)]),
    )


BREAKDOWN = Experiment(
    "breakdown",
    2,
    "Latency by stage",
    "Where does the time of an answer go, and how much of it does a second core take off the target?",
    BreakdownConfig(),
    BreakdownConfig(pairs=4, block=2, repeats=1, warm_ups=1),
    *runs_of(studies),
    summarise,
)
