"""Experiment 7: how busy the cores are, and how near passes come to the machine's peak rates."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from crossdraft.cli.cores import Cores
from crossdraft.drawing.kinds import kind_of
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.target import Target
from crossdraft.engine.timeline import Span
from crossdraft_lab.bench.assembly import EngineMethod
from crossdraft_lab.bench.charts import LaneBar, lanes
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, UnitResult
from crossdraft_lab.bench.experiments.roofline import MachinePeak, ModelShape, PassWork, layer_widths, machine_peak
from crossdraft_lab.bench.gpu import sampled_gpus
from crossdraft_lab.bench.measure import BenchMethod
from crossdraft_lab.bench.specs import runs_in_process
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.study import ALL, OWN, Answers, Study, faults_of, plain, runs_of, sure
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Item, Workload, items

LANES = ("target", "drafter")


@dataclass(frozen=True, slots=True)
class UtilisationConfig:
    """Methods, and the number of pairs."""

    methods: tuple[str, ...] = (OWN, ALL, "event", "glance", "eagle2")
    pairs: int = 16
    block: int = 8
    repeats: int = 2
    warm_ups: int = 3
    max_new_tokens: int = 96


def studies(config: UtilisationConfig, folder: Path | None = None) -> list[Study]:
    """Study of all methods; each block also has the machine's peaks and a timeline of each method's first answer."""
    work = Workload(config.pairs, max_new_tokens=config.max_new_tokens)
    variants = tuple(map(Variant, config.methods))
    study = Study(variants, work, (), config.block, config.repeats, config.warm_ups)

    @contextmanager
    def machine(key: str, made: Mapping[str, BenchMethod], target: Target) -> Iterator[dict[str, Any]]:
        found = dict[str, Any]()
        with sampled_gpus() as gpus:
            yield found
        shape, first = ModelShape.of(target), next(iter(items(study.work_of(key))))
        found["timelines"] = {name: _spans(method, first) for name, method in made.items()}
        cores = {name: made[name].cores for name in (OWN, ALL)}
        found |= {"shape": asdict(shape), "peaks": machine_peaks(target, shape, cores)}
        found |= {"gpu": gpus.uses, "no_gpu": gpus.absent}

    return [replace(study, more=machine)]


def machine_peaks(target: Target, shape: ModelShape, cores: Mapping[str, Cores | None]) -> dict[str, dict[str, float]]:
    """Measure the peaks of each method's cores, by the method's name."""
    layers, peaks = layer_widths(target), {}
    for name, own in cores.items():
        with pinned(None if own is None else own.target):
            peaks[name] = machine_peak(shape.nbytes, layers).to_json()
    return peaks


def _spans(method: BenchMethod, item: Item) -> list[list[Any]]:
    """Spans of an answer: lane, name, start and end in milliseconds since the request, tokens."""
    if not isinstance(method, EngineMethod):
        return []
    with pinned(None if method.cores is None else method.cores.target):
        timeline = method.ask(item.request, lambda piece: None).timeline
    start = timeline.start
    return [[s.lane, s.name, 1e3 * (s.start - start), 1e3 * (s.end - start), s.tokens] for s in timeline.spans]


def summarise(config: UtilisationConfig, found: Sequence[UnitResult]) -> Findings:
    """Summarise shares of busy time, stages of the target alone against the roofline, and timelines."""
    (study,) = studies(config)
    group, shape = study.pooled(found), ModelShape(**found[0].found["shape"])
    peaks = {name: _best_peak([unit.found["peaks"][name] for unit in found]) for name in (OWN, ALL)}
    busy = {name: busy_shares(group, name) for name in group.names}
    stages = {name: stage_work(group, name, shape) for name in (OWN, ALL)}
    for name, each in stages.items():
        for work, seconds in each.values():
            peaks[name] = peaks[name].raised(work, seconds.value)
    decode, seconds = stages[OWN]["decode step"]
    share = reached(decode, seconds, peaks[OWN])
    pair = max((name for name in group.names if name not in (OWN, ALL)), key=lambda name: busy[name]["both"].value)
    return Findings(
        found=(
            f"A decode step of the target on its core takes {seconds.scaled(1e3)} ms, {share.percent()} of which "
            f"the roofline explains ({decode.intensity:.1f} FLOPs a byte). With {pair} the target's lane is busy "
            f"{busy[pair]['target'].percent()} and the drafter's {busy[pair]['drafter'].percent()} of an answer's time."
        ),
        sure=(
            f"{sure(group, config.repeats)} Peaks are the best of five repetitions in each block, or what a pass "
            "reached; FLOPs and bytes are counted from shapes, not by hardware counters, and bytes are the least that "
            "a pass reads. Intervals of what is reached are of the passes' times, the peaks held. "
            f"{_gpu_sentence(found)}"
        ),
        tables=(_busy_table(busy), _roofline_table(stages, peaks)),
        figure=lanes("One answer: what runs on each lane", _lane_bars(found[0].found["timelines"]), "ms"),
        figures={
            "peaks": {name: peak.to_json() for name, peak in peaks.items()},
            "busy": plain(busy),
            "decode_ms": seconds.scaled(1e3).to_json(),
            "decode_reached": share.to_json(),
            "gpu": [unit.found["gpu"] for unit in found],
        },
        negative=(
            (f"Computing and reading weights at the measured peaks are {share.percent()} of a decode step.",)
            if share.value < 0.9
            else ()
        ),
        faults=faults_of([(study, group)]),
    )


def _busy_table(busy: Mapping[str, Mapping[str, Interval]]) -> FigureTable:
    rows = (
        (name, each["target"].percent(), each["drafter"].percent() if each["drafter"].value else "–",
         each["both"].percent())
        for name, each in busy.items()
    )  # fmt: skip
    return FigureTable(
        "Busy share of an answer's time, by lane",
        ("", "target", "drafter", "both together, of two cores"),
        tuple(rows),
        "By the timeline's spans: a lane is busy while something runs on it. While a drafter is idle its core serves "
        "the target, which these spans do not count. target-all has both cores in one lane, as has what drafts in the "
        "target's process: its two lanes take turns.",
    )


def _roofline_table(
    stages: Mapping[str, Mapping[str, tuple[PassWork, Interval]]], peaks: Mapping[str, MachinePeak]
) -> FigureTable:
    rows = (
        (f"{name}, {stage}", *_against(work, seconds, peaks[name]))
        for name, each in stages.items()
        for stage, (work, seconds) in each.items()
    )
    reached = "; ".join(
        f"{name}: {peak.gflops:.1f} GFLOP/s, copies {peak.copy_gbs:.1f} GB/s, {peak.cached_gbs:.1f} GB/s of a buffer "
        "as large as the weights"
        for name, peak in peaks.items()
    )
    return FigureTable(
        "Passes of the target alone against the roofline",
        ("", "ms", "GFLOP", "MB", "FLOPs a byte", "GFLOP/s", "GB/s", "bound, ms", "reached"),
        tuple(rows),
        f"{reached}. GFLOP/s are the best of plain matrices, of products with a layer's weights as the engine computes "
        "them, and of these passes. Bandwidths count bytes read and written. The bound takes the faster of the two.",
    )


def _gpu_sentence(found: Sequence[UnitResult]) -> str:
    """Describe the GPU readings of the first block, or say why there are none."""
    first = found[0].found
    if not first["gpu"]:
        return first.get("no_gpu") or "No GPU was sampled."
    each = (
        f"{one['name']} busy {one['busy']:.0%}, its memory {one['memory_busy']:.0%}, at most {one['most_mib']:,.0f} MiB"
        + ("" if one["watts"] is None else f", {one['watts']:.0f} W")
        for one in first["gpu"]
    )
    return f"GPUs in the first block, means of {first['gpu'][0]['samples']} readings by NVML: {'; '.join(each)}."


def busy_shares(group: Answers, name: str) -> dict[str, Interval]:
    """Share of the answers' time in which each lane is busy, and in which both cores together are."""

    def share(weights: Mapping[str, float]) -> Interval:
        each = [sum(run.busy_s.get(lane, 0.0) * weight for run in runs for lane, weight in weights.items())
                for runs in group.results.runs[name]]  # fmt: skip
        return ratio(each, group.results.seconds(name))

    shares = {lane: share({lane: 1.0}) for lane in LANES}
    cores = 0.5 if name == OWN or runs_in_process(name) else 1.0  # share of the two cores that a lane has
    return shares | {"both": share({"target": cores, "drafter": cores})}


def stage_work(group: Answers, name: str, shape: ModelShape) -> Mapping[str, tuple[PassWork, Interval]]:
    """Return mean work and mean seconds of the prefill and of a decode step, by the target alone."""
    runs = group.results.of(name)
    prompt, tokens = fmean(run.prompt_tokens for run in runs), fmean(len(run.tokens) for run in runs)
    prefill, scenes = group.stage(name, "prefill", "ride-along"), group.by_scene
    verify = [sum(run.stages_s["verify"] for run in each) for each in scenes.runs[name]]
    step = ratio(verify, [sum(run.rounds - 1 for run in each) for each in scenes.runs[name]])
    return {
        "prefill": (shape.pass_over(prompt, prompt / 2, 1), prefill),  # causal: half of the prompt on average
        "decode step": (shape.pass_over(1, prompt + tokens / 2, 1), step),
    }


def reached(work: PassWork, mean: Interval, peak: MachinePeak) -> Interval:
    """The roofline's bound over a pass's mean time, with that time's interval; at most 1, as no pass exceeds a peak."""
    share = mean.inverse.scaled(work.least_s(peak))
    return replace(share, value=min(1.0, share.value), low=min(1.0, share.low), high=min(1.0, share.high))


def _against(work: PassWork, mean: Interval, peak: MachinePeak) -> tuple[str, ...]:
    rate = mean.inverse
    return (
        str(mean.scaled(1e3)),
        f"{work.flops / 1e9:.3f}",
        f"{work.bytes / 1e6:.1f}",
        f"{work.intensity:.1f}",
        rate.scaled(work.flops / 1e9).shown(digits=1),
        rate.scaled(work.bytes / 1e9).shown(digits=1),
        f"{1e3 * work.least_s(peak):.2f}",
        reached(work, mean, peak).percent(),
    )


def _best_peak(found: Sequence[Mapping[str, float]]) -> MachinePeak:
    return MachinePeak(**{name: max(one[name] for one in found) for name in found[0]})


def _lane_bars(timelines: Mapping[str, Sequence[Sequence[Any]]]) -> list[LaneBar]:
    """Bars for each lane of each method; parts are kinds of spans."""
    bars = []
    for name, spans in timelines.items():
        for lane in LANES:
            own = [span for span in spans if span[0] == lane]
            if own:
                parts = tuple(
                    (start, end, kind.style, kind.meaning)
                    for _, what, start, end, tokens in own
                    for kind in [kind_of(Span(lane, what, start, end, tokens))]
                )
                bars.append(LaneBar(f"{name}: {lane}", parts))
    return bars


UTILISATION = Experiment(
    "utilisation",
    7,
    "Utilisation",
    "How busy are the cores of target and drafter, and how near are the target's passes to what the machine can do?",
    UtilisationConfig(),
    UtilisationConfig(pairs=2, block=2, repeats=1, warm_ups=1),
    *runs_of(studies),
    summarise,
)
