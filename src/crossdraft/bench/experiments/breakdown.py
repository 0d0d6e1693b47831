"""Experiment 2: where the time of an answer goes, stage by stage, and what two cores save over one after the other."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from crossdraft.bench.experiments.blocks import (
    ALL,
    OWN,
    BlockPlan,
    Pooled,
    answer_block,
    loaded_methods,
    pooled,
    sure,
    warm_up_items,
)
from crossdraft.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft.bench.experiments.variants import Variant
from crossdraft.bench.workload import Workload, items
from crossdraft.drawing.charts import BarPart, StackedBar, stacked_bars
from crossdraft.engine.target import Target

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


def stages_ms(found: Pooled, name: str, loading: float) -> dict[str, float]:
    """Mean milliseconds of each stage of `STAGES`; they add up to the mean time of an answer."""
    prepare = 1e3 * found.stage(name, "prepare").value
    times = {stage: 1e3 * found.stage(name, *parts).value for stage, (_, parts) in STAGES.items() if parts}
    return {"load": loading * prepare, "preprocess": (1 - loading) * prepare, **times}


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Mean milliseconds of an answer: work on both lanes, and the wall that it took."""

    target: float
    drafter: float
    wall: float

    @property
    def sequential(self) -> float:
        """What the same work takes when it is done one after the other."""
        return self.target + self.drafter

    @property
    def hidden(self) -> float:
        """Work of one lane that passed while the other one worked, at least."""
        return max(0.0, self.sequential - self.wall)


def overlap(found: Pooled, name: str) -> LaneTimes:
    """Of a method."""
    runs = found.results.of(name)
    lanes = [fmean(1e3 * run.busy_s.get(lane, 0.0) for run in runs) for lane in ("target", "drafter")]
    return LaneTimes(lanes[0], lanes[1], fmean(1e3 * run.total_s for run in runs))


def summarise(config: BreakdownConfig, units: Sequence[UnitResult]) -> Findings:
    """Stages, and sequential sums beside walls."""
    found = pooled(units)
    loading = fmean(unit.found["loading"] for unit in units)
    stages = {name: stages_ms(found, name, loading) for name in found.names}
    lanes = {name: overlap(found, name) for name in found.names}
    speedups = {name: found.speedup(name) for name in found.names}
    walls = {name: sum(stages[name].values()) for name in found.names}
    rows = tuple(
        (name, *(f"{value:.1f}" for value in stages[name].values()), f"{walls[name]:.1f}", str(speedups[name]))
        for name in found.names
    )
    both = tuple(
        (name, *(f"{value:.1f}" for value in (one.target, one.drafter, one.sequential, one.wall, one.hidden)))
        for name, one in lanes.items()
    )
    bars = [
        StackedBar(name, tuple(BarPart(stage, STAGES[stage][0], value) for stage, value in stages[name].items()))
        for name in found.names
    ]
    alone = found.alone or OWN
    reading = {name: sum(stages[name][stage] for stage in BEFORE) for name in stages}
    best = max((name for name in found.names if name not in (OWN, ALL)), key=lambda name: speedups[name].value)
    worse = [name for name in found.names if name not in (OWN, ALL) and reading[name] > 1.05 * reading[alone]]
    return Findings(
        found=(
            f"Reading ({', '.join(BEFORE)}) is {reading[alone] / walls[alone]:.0%} of an answer of {alone}, "
            f"{walls[alone]:.0f} ms. {best} takes {walls[best]:.0f} ms, {speedups[best]} times as fast; "
            f"{lanes[best].hidden:.0f} ms of work passed on one core while the other one worked."
        ),
        sure=sure(found, config.repeats),
        tables=(
            FigureTable(
                "Mean milliseconds of an answer by stage", ("", *STAGES, "wall", f"× {alone}"), rows,
                "On the target's lane: draft is the drafter's computing that the target waited for, overhead the "
                "engine's own part, the exchange with the drafter's process, and what is in no stage. Loading is told "
                "from preprocessing by preparing the same clips from memory as well; it is "
                f"{loading:.0%} of preparing them.",
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
            "stages_ms": stages,
            "speedup": {name: one.to_json() for name, one in speedups.items()},
            "against": alone,
            "reading_share": round(reading[alone] / walls[alone], 4),
            "lanes_ms": {name: asdict(one) for name, one in lanes.items()},
            "equal": {name: list(found.equal(name)) for name in found.names},
        },
        negative=(f"Reading takes longer than in {alone} beside a drafter: {', '.join(worse)}.",) if worse else (),
    )  # fmt: skip


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
