"""A block: some pairs, answered by all methods in turn; the unit of most experiments.

All that is compared is compared within blocks, so that whatever disturbs the machine falls on all methods.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.runner.forks import forking
from crossdraft.engine.target import Target
from crossdraft_lab.bench.assembly import Models, close_all
from crossdraft_lab.bench.experiments.record import RowFaults, Setting, UnitResult
from crossdraft_lab.bench.experiments.variants import Variant, make_variant
from crossdraft_lab.bench.measure import BenchMethod, Results, Run, measure
from crossdraft_lab.bench.report import FEW_PAIRS
from crossdraft_lab.bench.specs import HUGGING_FACE
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.workload import Item, Workload, items

MODELS = Models(dtype="float32")
OWN, ALL = "target", "target-all"
READING = ("prepare", "encode", "prefill", "ride-along")


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Contestants and pairs.

    Args:
        variants: what answers; the first two are the target alone, on its own core and on all, where speed matters.
        work: the pairs; those of a block are `block` of them, one after another.
        block: pairs of a unit; whole clips, where there are several questions about each.
        repeats: runs of each pair.
        warm_ups: pairs of another split that are answered first.
        prefix: of the keys.
    """

    variants: tuple[Variant, ...]
    work: Workload
    block: int
    repeats: int = 1
    warm_ups: int = 1
    prefix: str = "pairs"

    @property
    def keys(self) -> list[str]:
        """A key for each block."""
        return [f"{self.prefix} {first}" for first in range(0, self.work.pairs, self.block)]

    def first_of(self, key: str) -> int:
        """The number of a block's first pair."""
        return int(key.removeprefix(f"{self.prefix} "))

    def work_of(self, key: str) -> Workload:
        """The pairs of a block."""
        first = self.first_of(key)
        scenes = first // self.work.questions
        return replace(self.work, pairs=min(self.block, self.work.pairs - first), first=self.work.first + scenes)


@contextmanager
def loaded_methods(
    variants: Sequence[Variant], setting: Setting, models: Models = MODELS
) -> Iterator[tuple[Target, dict[str, BenchMethod]]]:
    """A target and what answers with it, on the cores of the pair; closed afterwards."""
    cores = setting.cores
    with forking([__name__]), pinned(None if cores is None else cores.pair):
        target = models.load_target()
        made: dict[str, BenchMethod] = {}
        try:
            plain = models.load_target(packed=False) if any(one.drafts in HUGGING_FACE for one in variants) else target
            for one in variants:
                own = plain if one.drafts in HUGGING_FACE else target
                made[one.name] = make_variant(one, own, models, cores)
            yield target, made
        finally:
            close_all(made.values())


def measure_blocks(plan: BlockPlan, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """Answer the pairs of these blocks; the first one warms up."""
    if not keys:
        return
    with loaded_methods(plan.variants, setting) as (target, made):
        warm = warm_up_items(plan)
        for key in keys:
            yield answer_block(key, plan, made, target, warm, setting)
            warm = []


def warm_up_items(plan: BlockPlan) -> list[Item]:
    """Pairs of the validation split."""
    if not plan.warm_ups:
        return []
    return list(items(replace(plan.work, pairs=plan.warm_ups, split="validation", first=0)))


def answer_block(
    key: str, plan: BlockPlan, made: Mapping[str, BenchMethod], target: Target, warm: Sequence[Item], setting: Setting
) -> UnitResult:
    """One block."""
    asked = list(items(plan.work_of(key)))
    results = measure(made, asked, plan.repeats, warm, setting.tick, before=plan.first_of(key) * plan.repeats)
    pairs = [
        {
            "scene": item.seed,
            "kind": item.kind,
            "question": item.request.prompt,
            "facts": dict(item.facts),
            "reference": item.answer,
        }
        for item in asked
    ]
    answers = {name: [target.decode(runs[0].tokens) for runs in found] for name, found in results.runs.items()}
    methods = {name: [[asdict(run) for run in runs] for runs in found] for name, found in results.runs.items()}
    found = {"pairs": pairs, "methods": methods, "answers": answers}
    return UnitResult(key, tuple(item.seed for item in asked), found)


@dataclass(frozen=True, slots=True)
class Pooled:
    """The runs of several blocks."""

    pairs: tuple[Mapping[str, Any], ...]
    results: Results
    answers: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """The methods."""
        return tuple(self.results.runs)

    @property
    def alone(self) -> str | None:
        """The faster way to run the target alone; `None` if it did not run."""
        ran = [name for name in (OWN, ALL) if name in self.results.runs]
        return min(ran, key=lambda name: sum(self.results.seconds(name)), default=None)

    @property
    def by_scene(self) -> Results:
        """The runs of each scene together: questions about one clip are no independent evidence, and are drawn at once.

        >>> one, pairs = Run((1,), 2.0, 1.0, {}, 1), ({"scene": 7}, {"scene": 7}, {"scene": 8})
        >>> Pooled(pairs, Results({"target": [[one], [one], [one]]}), {}).by_scene.seconds("target")
        [4.0, 2.0]
        """
        scenes = [pair["scene"] for pair in self.pairs]
        grouped: dict[str, list[list[Run]]] = {}
        for name, found in self.results.runs.items():
            each: dict[int, list[Run]] = {scene: [] for scene in scenes}
            for scene, runs in zip(scenes, found, strict=True):
                each[scene] += runs
            grouped[name] = list(each.values())
        return Results(grouped)

    @property
    def by_kind(self) -> dict[str, "Pooled"]:
        """The pairs about each kind of question, in order of appearance.

        >>> one, pairs = Run((1,), 2.0, 1.0, {}, 1), ({"scene": 7, "kind": "road"}, {"scene": 8, "kind": "weather"})
        >>> found = Pooled(pairs, Results({"target": [[one], [one]]}), {"target": ("Wide.", "Dry.")}).by_kind
        >>> {kind: each.answers["target"] for kind, each in found.items()}
        {'road': ('Wide.',), 'weather': ('Dry.',)}
        """
        chosen: dict[str, list[int]] = {}
        for index, pair in enumerate(self.pairs):
            chosen.setdefault(pair["kind"], []).append(index)
        return {kind: self._of(indices) for kind, indices in chosen.items()}

    def _of(self, indices: Sequence[int]) -> "Pooled":
        runs = {name: [found[index] for index in indices] for name, found in self.results.runs.items()}
        answers = {name: tuple(texts[index] for index in indices) for name, texts in self.answers.items()}
        return Pooled(tuple(self.pairs[index] for index in indices), Results(runs), answers)

    def speedup(self, name: str, against: str | None = None, *, per_token: bool = False) -> Interval:
        """Σ time of the target alone, the faster way, over Σ time of a method; drawn over scenes."""
        return self.by_scene.speedup(name, against or self.alone or OWN, per_token=per_token)

    def tau(self, name: str) -> Interval:
        """Tokens of the answers per verify pass; drawn over scenes."""
        return self.by_scene.tau(name)

    def equal(self, name: str, to: str = OWN) -> tuple[int, int]:
        """Runs whose tokens are the target's own, of how many."""
        own = [runs[0].tokens for runs in self.results.runs[to]]
        same = [run.tokens == tokens for tokens, runs in zip(own, self.results.runs[name], strict=True) for run in runs]
        return sum(same), len(same)

    def unequal(self, plan: BlockPlan) -> tuple[str, ...]:
        """Methods of ours that must give the target's own tokens, and did not; of sampled answers none must."""
        if plan.work.temperature > 0:
            return ()
        ours = [one.name for one in plan.variants if one.lossless and one.drafts not in HUGGING_FACE]
        return tuple(name for name in ours if name in self.names and len(set(self.equal(name))) > 1)

    def stage(self, name: str, *stages: str) -> Interval:
        """Mean seconds of some stages, over runs; drawn over scenes."""
        return self.mean_of(name, lambda run: sum(run.stages_s.get(stage, 0.0) for stage in stages))

    def mean(self, name: str, figure: str) -> Interval:
        """Mean of a figure of runs, drawn over scenes."""
        return self.mean_of(name, lambda run: getattr(run, figure))

    def reading_share(self, name: str) -> Interval:
        """ρ: the share of reading, up to and with the prefill's last piece, in the time of an answer."""
        scenes = self.by_scene
        reading = [sum(run.stages_s.get(stage, 0.0) for run in runs for stage in READING) for runs in scenes.runs[name]]
        return ratio(reading, scenes.seconds(name))

    def mean_of(self, name: str, figure: Callable[[Run], float]) -> Interval:
        """Mean of what is made of each run, drawn over scenes."""
        runs = self.by_scene.runs[name]
        return ratio([sum(map(figure, each)) for each in runs], [len(each) for each in runs])


def faults_of(groups: Iterable[tuple[BlockPlan, Pooled]]) -> RowFaults:
    """Collect the faults of rows and the engine's notes, of all groups; each row is named once."""
    unequal: list[str] = []
    lost: list[str] = []
    notes: list[tuple[str, str]] = []
    for plan, found in groups:
        unequal += found.unequal(plan)
        for name in found.names:
            runs = found.results.of(name)
            lost += [name] if any(run.drafter_error for run in runs) else []
            notes += [(name, note) for run in runs for note in run.notes]
    return RowFaults(tuple(dict.fromkeys(unequal)), tuple(dict.fromkeys(lost)), note_lines(notes))


def note_lines(notes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Rows and what was noted of an answer, each once.

    >>> note_lines([("event", "Lost."), ("event", "Lost.")])
    ('event, 2 answers: Lost.',)
    """
    counts = Counter(notes).items()
    return tuple(f"{name}, {n} {'answer' if n == 1 else 'answers'}: {note}" for (name, note), n in counts)


SPEED_HEADS = ("same tokens", "τ", "TTFT, ms", "E2E, ms")


def speed_row(found: Pooled, name: str, *, per_token: bool = False) -> tuple[str, ...]:
    """A method's row under `SPEED_HEADS` and its speed-up; means over runs."""
    equal, total = found.equal(name)
    lossy = any(run.lossy for run in found.results.of(name))
    return (
        name,
        "–" if per_token else f"{equal}/{total}" + (" (lossy)" if lossy else ""),
        str(found.tau(name)),
        found.mean(name, "ttft_s").scaled(1e3).shown(digits=1),
        found.mean(name, "total_s").scaled(1e3).shown(digits=1),
        str(found.speedup(name, per_token=per_token)),
    )


def speed_json(found: Pooled, name: str, *, per_token: bool = False) -> dict[str, object]:
    """The same as plain values."""
    return {
        "equal": list(found.equal(name)),
        "tau": found.tau(name).to_json(),
        "ttft_ms": found.mean(name, "ttft_s").scaled(1e3).to_json(),
        "e2e_ms": found.mean(name, "total_s").scaled(1e3).to_json(),
        "speedup": found.speedup(name, per_token=per_token).to_json(),
    }


def pooled(found: Sequence[UnitResult]) -> Pooled:
    """The runs of these blocks, which had the same methods."""
    names = list(found[0].found["methods"])
    runs: dict[str, list[list[Run]]] = {name: [] for name in names}
    answers: dict[str, list[str]] = {name: [] for name in names}
    for unit in found:
        for name in names:
            runs[name] += [[run_of(run) for run in pair] for pair in unit.found["methods"][name]]
            answers[name] += unit.found["answers"][name]
    pairs = tuple(pair for unit in found for pair in unit.found["pairs"])
    return Pooled(pairs, Results(runs), {name: tuple(texts) for name, texts in answers.items()})


def run_of(found: Mapping[str, Any]) -> Run:
    """A run that was a line."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return Run(**values)


def sure(pairs: Pooled, repeats: int, together: str = "all rows of a table") -> str:
    """State the certainty: pairs, scenes, repeats, what was interleaved, and how many are enough."""
    return (
        f"{len(pairs.pairs)} held-out pairs of scene and question, {repeats} {'run' if repeats == 1 else 'runs'} each, "
        f"{together} interleaved in one process; times are means, ratios are of sums, and intervals are 95 % bootstrap "
        f"over scenes.{few_scenes(pairs)}"
    )


def few_scenes(pairs: Pooled) -> str:
    """A warning, where there are too few scenes for a bootstrap to draw from."""
    few = len({pair["scene"] for pair in pairs.pairs}) < FEW_PAIRS
    return f" Fewer than {FEW_PAIRS} scenes: the intervals are narrower than the truth." if few else ""
