"""Experiment 6: one thing changed at a time, each group of variants interleaved with the target alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from crossdraft.drawing.charts import IntervalBar, interval_bars
from crossdraft_lab.bench.common import check_names
from crossdraft_lab.bench.experiments.blocks import (
    ALL,
    OWN,
    SPEED_HEADS,
    BlockPlan,
    Pooled,
    faults_of,
    few_scenes,
    measure_blocks,
    pooled,
    speed_json,
    speed_row,
    sure,
)
from crossdraft_lab.bench.experiments.parts import (
    AblatedPart,
    compare_parts,
    no_help,
    parts_json,
    parts_sentence,
    parts_table,
    untested,
)
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft_lab.bench.experiments.variants import Variant
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.workload import Workload

LENGTHS = (2, 4, 8, 16, 32)
QUESTIONS = 4  # about each clip, where prefix caches are compared


@dataclass(frozen=True, slots=True)
class AblationGroup:
    """Variants that are compared with each other.

    Args:
        title: of its table.
        variants: besides the target alone.
        parts: rows that differ in one thing alone, and are compared with each other.
        temperature: of the answers.
        questions: about each clip, one after another.
    """

    title: str
    variants: tuple[Variant, ...]
    parts: tuple[AblatedPart, ...] = ()
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
                AblatedPart("a core of its own", "one core, a process of its own"),
                AblatedPart("a core of its own", "one core, drafts before the prefill"),
                AblatedPart("one core, drafts beside the prefill", "one core, drafts before the prefill"),
            ),
        ),
        "length": AblationGroup(
            "Length of a draft, the hidden one included; nothing adapts",
            (*map(_fixed, LENGTHS), Variant("event, adaptive", "event")),
            tuple(AblatedPart("event, adaptive", _fixed(nodes).name) for nodes in LENGTHS),
        ),
        "trees": AblationGroup(
            "Shape of a draft tree",
            (
                Variant("eagle2, chain", "eagle2:tree=chain"),
                Variant("eagle2, static", "eagle2:tree=static"),
                Variant("eagle2, beams", "eagle2:tree=beams"),
                Variant("eagle2, dynamic", "eagle2:tree=dynamic"),
            ),
            tuple(AblatedPart(f"eagle2, {shape}", "eagle2, chain") for shape in ("static", "beams", "dynamic")),
        ),
        "parallel": AblationGroup(
            "What the drafter does while the target verifies",
            (
                Variant("nothing", "event-sync"),
                Variant("pipespec", "event-pipespec"),
                Variant("pearl", "event-pearl"),
                Variant("ssd", "event-ssd"),
            ),
            tuple(AblatedPart(policy, "nothing") for policy in ("pipespec", "pearl", "ssd")),
        ),
        "ride-along": AblationGroup(
            "A hidden draft that rides along with the prefill, or none",
            (
                Variant("event, rides along", "event"),
                Variant("event, none", "event", options={"hidden": "off"}),
                Variant("glance, rides along", "glance"),
                Variant("glance, none", "glance", options={"hidden": "off"}),
            ),
            tuple(AblatedPart(f"{name}, rides along", f"{name}, none") for name in ("event", "glance")),
        ),
        "cache": AblationGroup(
            f"Prefix cache, {QUESTIONS} questions about each clip",
            (
                Variant("target, cache", OWN, options={"cache_bytes": None}),
                Variant("event, no cache", "event"),
                Variant("event, cache", "event", options={"cache_bytes": None}),
            ),
            (AblatedPart("target, cache", OWN), AblatedPart("event, cache", "event, no cache")),
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
            tuple(AblatedPart(f"{name}, lends its core", f"{name}, keeps its core") for name in ("event", "glance")),
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
    """Which groups, and how much of each."""

    groups: tuple[str, ...] = tuple(GROUPS)
    pairs: int = 16
    block: int = 8
    repeats: int = 2
    warm_ups: int = 3
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        check_names("group of ablations", self.groups, tuple(GROUPS))

    def plan(self, name: str) -> BlockPlan:
        """The blocks of a group."""
        group = GROUPS[name]
        work = Workload(
            self.pairs, max_new_tokens=self.max_new_tokens, temperature=group.temperature, questions=group.questions
        )
        variants = (Variant(OWN), Variant(ALL), *group.variants)
        block = max(self.block, group.questions)
        plan = BlockPlan(variants, work, block, self.repeats, self.warm_ups, f"{name}, pairs")
        return plan if self.pairs >= group.questions else replace(plan, work=replace(work, pairs=group.questions))


def units(config: AblationsConfig) -> list[str]:
    """Blocks of all groups."""
    return [key for name in config.groups for key in config.plan(name).keys]


def measure(config: AblationsConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """Group after group."""
    for name in config.groups:
        plan = config.plan(name)
        yield from measure_blocks(plan, [key for key in plan.keys if key in keys], setting)


def summarise(config: AblationsConfig, found: Sequence[UnitResult]) -> Findings:
    """A table of all parts, and one for each group."""
    groups = {
        name: pooled([unit for unit in found if unit.key in set(config.plan(name).keys)]) for name in config.groups
    }
    effects = compare_parts({name: (GROUPS[name].parts, group) for name, group in groups.items()})
    tables = [_table(GROUPS[name], group) for name, group in groups.items()]
    if effects:
        tables.insert(0, parts_table(effects))
    best = {name: max(_own(name), key=lambda one: _speedup(name, group, one).value) for name, group in groups.items()}
    sentences = [f"{GROUPS[name].title}: {best[name]} ({_speedup(name, groups[name], best[name])})" for name in groups]
    lost = [
        f"{GROUPS[name].title}: {one} is slower than the target alone ({_speedup(name, group, one)})."
        for name, group in groups.items()
        for one in _own(name)
        if _speedup(name, group, one).below_one
    ]
    bars = [
        IntervalBar(f"{name}: {one}", *_ends(name, group, one), "draft" if one == best[name] else "encoder")
        for name, group in groups.items()
        for one in _own(name)
    ]
    return Findings(
        found=f"{parts_sentence(effects)}The fastest of each group. {'; '.join(sentences)}.",
        sure=f"{sure(next(iter(groups.values())), config.repeats)}{untested(effects)}",
        tables=tuple(tables),
        figure=interval_bars("Speed-up over the target alone, the faster way, by what varies", bars, "×"),
        figures={
            name: {one: speed_json(group, one, per_token=_sampled(name)) for one in group.names}
            for name, group in groups.items()
        }
        | {"parts": parts_json(effects)},
        negative=(*lost, *no_help(effects, {name: GROUPS[name].title for name in groups})),
        faults=faults_of((config.plan(name), group) for name, group in groups.items()),
    )


def _own(name: str) -> list[str]:
    return [variant.name for variant in GROUPS[name].variants]


def _sampled(name: str) -> bool:
    return GROUPS[name].temperature > 0


def _speedup(name: str, group: Pooled, one: str) -> Interval:
    return group.speedup(one, per_token=_sampled(name))


def _ends(name: str, group: Pooled, one: str) -> tuple[float, float, float, int]:
    found = _speedup(name, group, one)
    return found.value, found.low, found.high, found.n


def _table(group: AblationGroup, found: Pooled) -> FigureTable:
    sampled = group.temperature > 0
    about = f"{group.questions} questions about each clip, which count as one.{few_scenes(found)}"
    note = "Sampled answers differ; speed-ups are per token." if sampled else about if group.questions > 1 else ""
    heads = ("", *SPEED_HEADS, f"× {found.alone}{' per token' if sampled else ''}")
    return FigureTable(group.title, heads, tuple(speed_row(found, one, per_token=sampled) for one in found.names), note)


ABLATIONS = Experiment(
    "ablations",
    6,
    "Ablations",
    "What does each part contribute: a core of its own, the length and shape of drafts, drafting while the target "
    "verifies, the ride-along, caches, elastic cores? And what does sampling cost?",
    AblationsConfig(),
    AblationsConfig(
        groups=("placement", "length", "trees", "parallel", "ride-along", "cache", "elastic", "temperature 0.7"),
        pairs=2, block=2, repeats=1, warm_ups=1, max_new_tokens=64,
    ),
    units,
    measure,
    summarise,
)  # fmt: skip
