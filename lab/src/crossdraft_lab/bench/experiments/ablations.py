"""Experiment 6: one thing changed at a time, each group of variants interleaved with the target alone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crossdraft_lab.bench.charts import interval_bars
from crossdraft_lab.bench.common import check_names
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, UnitResult
from crossdraft_lab.bench.significance import (
    ALPHA,
    COMPARISON_HEADS,
    COMPARISON_NOTE,
    compare_together,
    comparison_cells,
    comparison_json,
    least_scenes,
)
from crossdraft_lab.bench.statistics import FEW_PAIRS
from crossdraft_lab.bench.study import (
    ALL,
    OWN,
    Answers,
    Study,
    bar,
    faults_of,
    few_scenes,
    figure_table,
    name_column,
    rows_json,
    runs_of,
    speed_columns,
    sure,
)
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload

FASTER, SLOWER, NOT_SEEN, UNTESTED = "faster", "slower", "no difference seen", "too few scenes"
LENGTHS = (2, 4, 8, 16, 32)
QUESTIONS = 4  # about each clip, where prefix caches are compared


@dataclass(frozen=True, slots=True)
class AblationGroup:
    """Variants that are compared with each other.

    Args:
        title: title of the table.
        variants: variants to measure besides the target alone.
        parts: pairs of rows, with a part and without it, that differ in that part alone.
        temperature: temperature of the answers.
        questions: number of questions about each clip, one after another.
    """

    title: str
    variants: tuple[Variant, ...]
    parts: tuple[tuple[str, str], ...] = ()
    temperature: float = 0.0
    questions: int = 1


def _fixed(nodes: int) -> Variant:
    options = {"adaptive": False, "nodes": nodes, "hidden_nodes": nodes}
    return Variant(f"event, {nodes} tokens", "event", options=options)


def _inline(name: str, hidden: str) -> Variant:
    return Variant(name, "event", options={"placement": "inline", "hidden": hidden}, one_core=True)


GROUPS: Mapping[str, AblationGroup] = MappingProxyType(
    {
        "placement": AblationGroup(
            "Parallel, sequential, or one core for both",
            (
                Variant("a core of its own", "event"),
                _inline("one core, drafts before the prefill", "before"),
                _inline("one core, drafts beside the prefill", "beside"),
                Variant("one core, a process of its own", "event", one_core=True),
            ),
            (
                ("a core of its own", "one core, a process of its own"),
                ("a core of its own", "one core, drafts before the prefill"),
                ("one core, drafts beside the prefill", "one core, drafts before the prefill"),
            ),
        ),
        "length": AblationGroup(
            "Length of a draft, the hidden one included; nothing adapts",
            (*map(_fixed, LENGTHS), Variant("event, adaptive", "event")),
            tuple(("event, adaptive", _fixed(nodes).name) for nodes in LENGTHS),
        ),
        "trees": AblationGroup(
            "Shape of a draft tree",
            (
                Variant("eagle2, chain", "eagle2:tree=chain"),
                Variant("eagle2, static", "eagle2:tree=static"),
                Variant("eagle2, beams", "eagle2:tree=beams"),
                Variant("eagle2, dynamic", "eagle2:tree=dynamic"),
            ),
            tuple((f"eagle2, {shape}", "eagle2, chain") for shape in ("static", "beams", "dynamic")),
        ),
        "ride-along": AblationGroup(
            "A hidden draft that rides along with the prefill, or none",
            (
                Variant("event, rides along", "event"),
                Variant("event, none", "event", options={"hidden": "off"}),
                Variant("glance, rides along", "glance"),
                Variant("glance, none", "glance", options={"hidden": "off"}),
            ),
            tuple((f"{name}, rides along", f"{name}, none") for name in ("event", "glance")),
        ),
        "cache": AblationGroup(
            f"Prefix cache, {QUESTIONS} questions about each clip",
            (
                Variant("target, cache", OWN, options={"cache_bytes": None}),
                Variant("event, no cache", "event"),
                Variant("event, cache", "event", options={"cache_bytes": None}),
            ),
            (("target, cache", OWN), ("event, cache", "event, no cache")),
            questions=QUESTIONS,
        ),
        "elastic": AblationGroup(
            "Whether the drafter's core serves the target while it is idle",
            (
                Variant("event, lends its core", "event"),
                Variant("event, keeps its core", "event", lends=False),
                Variant("glance, lends its core", "glance"),
                Variant("glance, keeps its core", "glance", lends=False),
            ),
            tuple((f"{name}, lends its core", f"{name}, keeps its core") for name in ("event", "glance")),
        ),
        **{
            f"temperature {warm:g}": AblationGroup(
                f"Temperature {warm:g}", (Variant("event"), Variant("glance")), temperature=warm
            )
            for warm in (0.3, 0.7, 1.0)
        },
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AblationsConfig:
    """Groups of variants, and the amount of work for each."""

    groups: tuple[str, ...] = tuple(GROUPS)
    pairs: int = 16
    block: int = 8
    repeats: int = 2
    warm_ups: int = 3
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        check_names("group of ablations", self.groups, tuple(GROUPS))


def studies(config: AblationsConfig, folder: Path | None = None) -> list[Study]:
    """One study for each group."""
    found = []
    for name in config.groups:
        group = GROUPS[name]
        sampled = group.temperature > 0
        work = Workload(
            max(config.pairs, group.questions),
            max_new_tokens=config.max_new_tokens,
            temperature=group.temperature,
            questions=group.questions,
        )
        variants = (Variant(OWN), Variant(ALL), *group.variants)
        block = max(config.block, group.questions)
        columns = speed_columns("", per_token=sampled)
        found.append(Study(variants, work, columns, block, config.repeats, config.warm_ups, f"{name}, pairs"))
    return found


def part_rows(groups: Mapping[str, tuple[Sequence[tuple[str, str]], Answers]]) -> list[dict[str, Any]]:
    """A row for each part of all groups, with Holm's correction over all that can be tested.

    `ratio`: Σ time without the part / Σ time with it, drawn over scenes; above 1, the part helps. `tested`: the test
    over scenes; `None` where there are too few. `direction`: direction of the effect, if the test supports one.
    """
    pairs = [(name, on, off, found) for name, (parts, found) in groups.items() for on, off in parts]
    tested = compare_together({f"{name}: {on} / {off}": found.costs(on, off) for name, on, off, found in pairs})
    rows = []
    for name, on, off, found in pairs:
        ratio, one = found.speedup(on, off), tested.get(f"{name}: {on} / {off}")
        seen = FASTER if ratio.value > 1 else SLOWER
        direction = UNTESTED if one is None else seen if one.differs else NOT_SEEN
        rows.append({"group": name, "on": on, "off": off, "ratio": ratio, "tested": one, "direction": direction})
    return rows


def summarise(config: AblationsConfig, found: Sequence[UnitResult]) -> Findings:
    """A table of all parts, and one for each group."""
    plans = studies(config)
    groups = {name: plan.pooled(found) for name, plan in zip(config.groups, plans, strict=True)}
    parts = part_rows({name: (GROUPS[name].parts, group) for name, group in groups.items()})
    speedups = {
        name: {
            one.name: group.speedup(one.name, per_token=GROUPS[name].temperature > 0) for one in GROUPS[name].variants
        }
        for name, group in groups.items()
    }
    best = {name: max(each, key=lambda one: each[one].value) for name, each in speedups.items()}
    every = [(name, one, speedup) for name, each in speedups.items() for one, speedup in each.items()]
    fastest = "; ".join(f"{GROUPS[name].title}: {one} ({speedups[name][one]})" for name, one in best.items())
    bars = [bar(f"{name}: {one}", speedup, "draft" if one == best[name] else "encoder") for name, one, speedup in every]
    lost = [
        f"{GROUPS[name].title}: {one} is slower than the target alone ({speedup})."
        for name, one, speedup in every
        if speedup.below_one
    ]
    tables = [_table(GROUPS[name], group) for name, group in groups.items()]
    return Findings(
        found=f"{_parts_sentence(parts)}The fastest of each group. {fastest}.",
        sure=f"{sure(next(iter(groups.values())), config.repeats)}{_untested(parts)}",
        tables=(*([_parts_table(parts)] if parts else []), *tables),
        figure=interval_bars("Speed-up over the target alone, the faster way, by what varies", bars, "×"),
        figures={
            name: {one: rows_json(plan.columns, group, one) for one in group.names}
            for (name, group), plan in zip(groups.items(), plans, strict=True)
        }
        | {"parts": _parts_json(parts)},
        negative=(*lost, *_no_help(parts)),
        faults=faults_of(zip(plans, groups.values(), strict=True)),
    )


def _table(group: AblationGroup, found: Answers) -> FigureTable:
    sampled = group.temperature > 0
    about = f"{group.questions} questions about each clip, which count as one.{few_scenes(found)}"
    note = "Sampled answers differ; speed-ups are per token." if sampled else about if group.questions > 1 else ""
    speed = speed_columns(f"× {found.alone}{' per token' if sampled else ''}", per_token=sampled)
    return figure_table(group.title, (name_column(), *speed), [(found, name) for name in found.names], note)


def _parts_table(parts: Sequence[Mapping[str, Any]]) -> FigureTable:
    few = any(one["ratio"].n < FEW_PAIRS for one in parts)
    narrow = f" Intervals of fewer than {FEW_PAIRS} scenes are narrower than the truth." if few else ""
    return FigureTable(
        "Each part: with it against without it, scene by scene",
        ("what varies", "with", "without", "× without", *COMPARISON_HEADS, "with it"),
        tuple(
            (one["group"], one["on"], one["off"], str(one["ratio"]), *comparison_cells(one["tested"]), one["direction"])
            for one in parts
        ),
        "× without: Σ time of the row without the part over Σ time of the row with it; above 1, the part helps. "
        f"{COMPARISON_NOTE} Faster and slower are what both the interval and p < {ALPHA:g} say."
        f"{_untested(parts)}{narrow}",
    )


def _untested(parts: Sequence[Mapping[str, Any]]) -> str:
    """Name the groups with too few scenes for any test, and the number of scenes that could show a difference."""
    few = {one["group"]: one["ratio"].n for one in parts if one["tested"] is None}
    counts, least = "; ".join(f"{name}: {n}" for name, n in few.items()), least_scenes(len(parts))
    return f" Too few scenes to show any difference of {len(parts)} parts ({counts}); {least} can." if few else ""


def _parts_sentence(parts: Sequence[Mapping[str, Any]]) -> str:
    """Say how many parts help, how many harm, and how many show no effect; empty where there are no parts."""
    tested, of = sum(one["tested"] is not None for one in parts), Counter(one["group"] for one in parts)
    if not tested:
        return f"The scenes are too few to test any of {len(parts)} parts. " if parts else ""

    def count(direction: str) -> str:
        """Number of parts with an effect in this direction, such as "2 (placement 1 of 3, trees 1 of 3)"."""
        found = Counter(one["group"] for one in parts if one["direction"] == direction)
        groups = ", ".join(f"{name} {n} of {of[name]}" for name, n in found.items())
        return f"{found.total()} ({groups})" if groups else "0"

    return (
        f"Of {tested} parts that were tested scene by scene, answers are significantly faster with {count(FASTER)}, "
        f"significantly slower with {count(SLOWER)}, and of {count(NOT_SEEN)} no difference is seen. "
    )


def _no_help(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield sentences about parts that harm, and about parts that show no difference."""
    for one in parts:
        title, on, off, tested = GROUPS[one["group"]].title, one["on"], one["off"], one["tested"]
        shown = f"({one['ratio']} times as fast, p = {tested.adjusted_p:.2g})" if tested else ""
        if one["direction"] == SLOWER:
            yield f"{title}: {on} is slower than {off} {shown}."
        elif one["direction"] == NOT_SEEN:
            yield f"{title}: {on} is not seen to be faster than {off} {shown}; {tested.detectable:.1%} would be seen."


def _parts_json(parts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, object]]:
    """Plain values of each part, by the group that it belongs to."""
    found: dict[str, dict[str, object]] = {one["group"]: {} for one in parts}
    for one in parts:
        figures = one["ratio"].to_json() | comparison_json(one["tested"]) | {"direction": one["direction"]}
        found[one["group"]][f"{one['on']} / {one['off']}"] = figures
    return found


ABLATIONS = Experiment(
    "ablations",
    6,
    "Ablations",
    "What does each part contribute: a core of its own, the length and shape of drafts, drafting while the target "
    "verifies, the ride-along, caches, elastic cores? And what does sampling cost?",
    AblationsConfig(),
    AblationsConfig(
        groups=("placement", "length", "trees", "ride-along", "cache", "elastic", "temperature 0.7"),
        pairs=2, block=2, repeats=1, warm_ups=1, max_new_tokens=64,
    ),
    *runs_of(studies),
    summarise,
)  # fmt: skip
