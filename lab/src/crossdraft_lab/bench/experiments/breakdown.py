"""Experiment 2: where the time of an answer goes, stage by stage, and what two cores save over one after the other."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from crossdraft.drawing.charts import BarPart, StackedBar, stacked_bars
from crossdraft.engine.target import Target
from crossdraft_lab.bench.experiments.blocks import (
    ALL,
    OWN,
    BlockPlan,
    Pooled,
    answer_block,
    faults_of,
    loaded_methods,
    pooled,
    sure,
    warm_up_items,
)
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft_lab.bench.experiments.variants import Variant
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.workload import Workload, items

# stage: (style of the palette, the engine's stages that it is the sum of); `prepare` is parted into load and preprocess
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
    """Which methods, on how many pairs; clips are read from files inside the clock."""

    methods: tuple[str, ...] = (OWN, ALL, SEQUENTIAL, "event", "glance", "eaglevlm")
    pairs: int = 32
    block: int = 4
    repeats: int = 2
    warm_ups: int = 3
    max_new_tokens: int = 96

    def plan(self, setting: Setting | None = None) -> BlockPlan:
        """The blocks."""
        files = None if setting is None else setting.work / "clips"
        work = Workload(self.pairs, max_new_tokens=self.max_new_tokens, files=files)
        return BlockPlan(tuple(map(variant_of, self.methods)), work, self.block, self.repeats, self.warm_ups)


def variant_of(name: str) -> Variant:
    """The method of a name."""
    if name == SEQUENTIAL:
        return Variant(name, "event", options={"placement": "inline", "hidden": "before"}, one_core=True)
    return Variant(name)


def measure(config: BreakdownConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """Blocks, each with the share of loading in the time that the target prepares its clips."""
    plan = config.plan(setting)
    with loaded_methods(plan.variants, setting) as (target, made):
        warm = warm_up_items(plan)
        for key in keys:
            found = answer_block(key, plan, made, target, warm, setting)
            yield replace(found, found={**found.found, "loading": loading_share(plan.work_of(key), target)})
            warm = []


def loading_share(work: Workload, target: Target) -> float:
    """The part of preparing a clip that is gone when its frames are in memory already."""
    decoded = items(replace(work, files=None))
    clocked = [
        (_prepare_s(target, item.request), _prepare_s(target, shown.request))
        for item, shown in zip(items(work), decoded, strict=True)
    ]
    whole, rest = (sum(each) for each in zip(*clocked, strict=True))
    return max(0.0, 1.0 - rest / whole)


def _prepare_s(target: Target, request: object) -> float:
    """Seconds, the least of several."""
    least = float("inf")
    for _ in range(CLOCKED):
        start = time.perf_counter()
        target.prepare(request)  # pyright: ignore[reportArgumentType]
        least = min(least, time.perf_counter() - start)
    return least


def stages_ms(found: Pooled, name: str, loading: float) -> dict[str, Interval]:
    """Mean milliseconds of each stage of `STAGES`; they add up to the mean time of an answer."""
    prepare = found.stage(name, "prepare").scaled(1e3)
    times = {stage: found.stage(name, *parts).scaled(1e3) for stage, (_, parts) in STAGES.items() if parts}
    return {"load": prepare.scaled(loading), "preprocess": prepare.scaled(1 - loading), **times}


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Mean milliseconds of an answer.

    Args:
        target, drafter: work on each lane.
        sequential: what the same work takes when it is done one after the other.
        wall: the time that it took.
        hidden: work of one lane that passed while the other one worked, at least.
    """

    target: Interval
    drafter: Interval
    sequential: Interval
    wall: Interval
    hidden: Interval

    @property
    def all(self) -> dict[str, Interval]:
        """By name, in the order of the table."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def overlap(found: Pooled, name: str) -> LaneTimes:
    """Compute the lane times of a method."""

    def lanes(run: Run, *named: str) -> float:
        return sum(run.busy_s.get(lane, 0.0) for lane in named)

    means = (
        found.mean_of(name, lambda run: lanes(run, "target")),
        found.mean_of(name, lambda run: lanes(run, "drafter")),
        found.mean_of(name, lambda run: lanes(run, "target", "drafter")),
        found.mean(name, "total_s"),
    )
    more = found.mean_of(name, lambda run: lanes(run, "target", "drafter") - run.total_s)
    hidden = replace(more, value=max(0.0, more.value), low=max(0.0, more.low), high=max(0.0, more.high))
    return LaneTimes(*(one.scaled(1e3) for one in (*means, hidden)))


def summarise(config: BreakdownConfig, units: Sequence[UnitResult]) -> Findings:
    """Stages, and sequential sums beside walls."""
    found = pooled(units)
    shares = [unit.found["loading"] for unit in units]
    loading = ratio(shares, [1.0] * len(shares))
    stages = {name: stages_ms(found, name, loading.value) for name in found.names}
    lanes = {name: overlap(found, name) for name in found.names}
    speedups = {name: found.speedup(name) for name in found.names}
    rows = tuple(
        (name, *(one.shown(digits=1) for one in (*stages[name].values(), lanes[name].wall)), str(speedups[name]))
        for name in found.names
    )
    both = tuple((name, *(each.shown(digits=1) for each in one.all.values())) for name, one in lanes.items())
    bars = [
        StackedBar(name, tuple(BarPart(stage, STAGES[stage][0], one.value) for stage, one in stages[name].items()))
        for name in found.names
    ]
    alone = found.alone or OWN
    reading = {name: sum(stages[name][stage].value for stage in BEFORE) for name in stages}
    share = found.reading_share(alone)
    best = max((name for name in found.names if name not in (OWN, ALL)), key=lambda name: speedups[name].value)
    worse = [name for name in found.names if name not in (OWN, ALL) and reading[name] > 1.05 * reading[alone]]
    return Findings(
        found=(
            f"Reading ({', '.join(BEFORE)}) is {share.percent()} of an answer of {alone}, "
            f"{lanes[alone].wall.shown(digits=0)} ms. {best} takes {lanes[best].wall.shown(digits=0)} ms, "
            f"{speedups[best]} times as fast; {lanes[best].hidden.shown(digits=0)} ms of work passed on one core while "
            "the other one worked."
        ),
        sure=sure(found, config.repeats),
        tables=(
            FigureTable(
                "Mean milliseconds of an answer by stage", ("", *STAGES, "wall", f"× {alone}"), rows,
                "On the target's lane: draft is the drafter's computing that the target waited for, overhead the "
                "engine's own part, the exchange with the drafter's process, and what is in no stage. Loading is told "
                "from preprocessing by preparing the same clips from memory as well; it is "
                f"{loading.percent()} of preparing them, drawn over blocks.",
            ),
            FigureTable(
                "Both lanes: the sequential sum of their work beside the wall",
                ("", "target busy, ms", "drafter busy, ms", "sequential sum, ms", "wall, ms", "hidden, ms"), both,
                f"'{SEQUENTIAL}' is the drafter event on the target's core, drafting before the prefill: its wall is "
                "the sum as measured.",
            ),
        ),
        figure=stacked_bars("Mean time of an answer by stage", bars, "ms"),
        figures={
            "stages_ms": {name: _json(each) for name, each in stages.items()},
            "speedup": {name: one.to_json() for name, one in speedups.items()},
            "against": alone,
            "reading_share": share.to_json(),
            "lanes_ms": {name: _json(one.all) for name, one in lanes.items()},
            "equal": {name: list(found.equal(name)) for name in found.names},
        },
        negative=(f"Reading takes longer than in {alone} beside a drafter: {'; '.join(worse)}.",) if worse else (),
        faults=faults_of([(config.plan(), found)]),
    )  # fmt: skip


def _json(each: Mapping[str, Interval]) -> dict[str, dict[str, object]]:
    return {name: one.to_json() for name, one in each.items()}


BREAKDOWN = Experiment(
    "breakdown",
    2,
    "Latency by stage",
    "Where does the time of an answer go, and how much of it does a second core take off the target?",
    BreakdownConfig(),
    BreakdownConfig(pairs=4, block=2, repeats=1, warm_ups=1),
    lambda config: config.plan().keys,
    measure,
    summarise,
)
