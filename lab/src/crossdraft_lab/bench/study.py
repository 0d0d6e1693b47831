"""One record for a comparison: what answers (variants), the questions (workload), the figures of each (columns).

A study runs in blocks: some pairs, answered by all variants in turn, so that whatever disturbs the machine falls on all
of them. Its table, its JSON and its faults are made here, of the columns, for every bench and every experiment.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crossdraft.drawing.charts import IntervalBar
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.target import Target
from crossdraft_lab.bench.assembly import Models, close_all
from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.experiments.record import FigureTable, RowFaults, Setting, Tick, UnitResult
from crossdraft_lab.bench.forking import forking
from crossdraft_lab.bench.measure import BenchMethod, Results, Run, measure
from crossdraft_lab.bench.significance import PairedCosts
from crossdraft_lab.bench.specs import HUGGING_FACE
from crossdraft_lab.bench.statistics import FEW_PAIRS, Interval, Quartiles, ratio
from crossdraft_lab.bench.variants import Variant, make_variant
from crossdraft_lab.bench.workload import Item, Workload, items
from crossdraft_lab.scenes import score

if TYPE_CHECKING:
    from rich.table import Table

    from crossdraft.cli.cores import Cores

C = TypeVar("C")
MODELS = Models(dtype="float32")
OWN, ALL = "target", "target-all"
READING = ("prepare", "encode", "prefill", "ride-along")


def shown(value: Any) -> str:
    """Format a figure for a table.

    >>> shown(None), shown(True), shown(2.345), shown((3, 4)), shown(Interval(1.444, 1.4, 1.49, 40))
    ('–', 'yes', '2.35', '3/4', '1.44 [1.40, 1.49; n=40]')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def plain(value: Any, digits: int = 3) -> Any:
    """A figure as JSON has it: intervals and quartiles by their own keys, other numbers rounded.

    >>> plain({"a": Interval(0.5, 0.25, 1.0, 4), "b": (1, 0.12345)})
    {'a': {'value': 0.5, 'ci95': [0.25, 1.0], 'n': 4}, 'b': [1, 0.123]}
    """
    if isinstance(value, Interval):
        return value.to_json()
    if isinstance(value, Quartiles):
        return value.ms()
    if isinstance(value, Mapping):
        return {name: plain(one, digits) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, digits) for one in value]
    return round(value, digits) if isinstance(value, float) and math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """A figure of each row.

    Args:
        key: in the JSON; "" for one of the table alone.
        head: in the table; "" for one of the JSON alone.
        of: the figure: of the answers and a row's name in a study, of the row in `rows_table` and `rows_json`.
        show: as the table has it.
        json: as the JSON has it.
    """

    key: str
    head: str
    of: Callable[..., Any]
    show: Callable[[Any], str] = shown
    json: Callable[[Any], Any] = plain


def rows_json(columns: Sequence[FigureColumn], *row: Any) -> dict[str, Any]:
    """The figures of a row as plain values."""
    return {column.key: column.json(column.of(*row)) for column in columns if column.key}


def rows_table(columns: Sequence[FigureColumn], rows: Iterable[Any], title: str | None = None) -> "Table":
    """The figures of rows for people; the first column names the rows."""
    return terminal_table(figure_table(title or "", columns, [(row,) for row in rows]))


def figure_table(
    title: str, columns: Sequence[FigureColumn], rows: Iterable[Sequence[Any]], note: str = ""
) -> FigureTable:
    """Table of a report; each of `rows` holds the arguments of the columns' functions."""
    heads = [column for column in columns if column.head or column is columns[0]]
    cells = tuple(tuple(column.show(column.of(*row)) for column in heads) for row in rows)
    return FigureTable(title, tuple(column.head for column in heads), cells, note)


def terminal_table(found: FigureTable) -> "Table":
    """A table for the terminal."""
    from rich.markup import escape

    made = table(found.title or None, found.heads[0], found.heads[1:], found.note or None)
    for row in found.rows:
        made.add_row(*map(escape, row))
    return made


def _nothing(*_: object) -> AbstractContextManager[dict[str, Any]]:
    return nullcontext({})


@dataclass(frozen=True, slots=True)
class Study:
    """A comparison.

    Args:
        variants: what answers; the first two are the target alone, on its own core and on all, where speed matters.
        work: the pairs; those of a block are `block` of them, one after another.
        columns: the figures of each variant.
        block: pairs of a unit; whole clips, where there are several questions about each; 0 = all.
        repeats: runs of each pair.
        warm_ups: pairs of another split that are answered first.
        prefix: of the keys.
        models: the pair.
        title, note: of its table.
        more: entered around a block, of its key, the methods and the target; what it gives the block finds, too.
        prepare: what is done to the methods once they are made.
        asked: the pairs of a part of the workload.
    """

    variants: tuple[Variant, ...]
    work: Workload
    columns: tuple[FigureColumn, ...] = ()
    block: int = 0
    repeats: int = 1
    warm_ups: int = 1
    prefix: str = "pairs"
    models: Models = MODELS
    title: str = ""
    note: str = ""
    more: Callable[[str, Mapping[str, BenchMethod], Target], AbstractContextManager[dict[str, Any]]] = _nothing
    prepare: Callable[[BenchMethod], None] = lambda _: None
    asked: Callable[[Workload], Iterable[Item]] = items

    @property
    def keys(self) -> list[str]:
        """A key for each block."""
        return [f"{self.prefix} {first}" for first in range(0, self.work.pairs, self.block or self.work.pairs)]

    def first_of(self, key: str) -> int:
        """The number of a block's first pair."""
        return int(key.removeprefix(f"{self.prefix} "))

    def work_of(self, key: str) -> Workload:
        """The pairs of a block."""
        first = self.first_of(key)
        pairs = min(self.block or self.work.pairs, self.work.pairs - first)
        return replace(self.work, pairs=pairs, first=self.work.first + first // self.work.questions)

    @property
    def warm_up_items(self) -> list[Item]:
        """Pairs of the validation split; without a namespace, as nothing is to be learned of their answers."""
        warm = replace(self.work, pairs=max(1, self.warm_ups), split="validation", first=0)
        asked = self.asked(warm) if self.warm_ups else []
        return [replace(item, request=replace(item.request, namespace=None)) for item in asked]

    @property
    def runs(self) -> int:
        """Number of answers it asks for: the steps of a progress bar."""
        return len(self.variants) * (self.warm_ups + self.work.pairs * self.repeats)

    @contextmanager
    def loaded(self, setting: Setting, target: Target | None = None) -> Iterator[tuple[Target, dict[str, BenchMethod]]]:
        """A target and what answers with it, on the cores of the pair; closed afterwards."""
        cores = setting.cores
        with forking([__name__]), pinned(None if cores is None else cores.pair):
            own = target or self.models.load_target()
            made: dict[str, BenchMethod] = {}
            try:
                theirs = any(one.drafts in HUGGING_FACE for one in self.variants)
                plain_layers = self.models.load_target(packed=False) if theirs else own
                for one in self.variants:
                    layers = plain_layers if one.drafts in HUGGING_FACE else own
                    made[one.name] = make_variant(one, layers, self.models, cores)
                    self.prepare(made[one.name])
                yield own, made
            finally:
                close_all(made.values())

    def measure(self, keys: Sequence[str], setting: Setting, target: Target | None = None) -> Iterator[UnitResult]:
        """Answer the pairs of those of its blocks that are among the keys; the first one warms up."""
        pending = [key for key in self.keys if key in keys]
        if not pending:
            return
        with self.loaded(setting, target) as (loaded, made):
            warm = self.warm_up_items
            for key in pending:
                with self.more(key, made, loaded) as more:
                    found = self.answer_block(key, made, loaded, warm, setting.tick)
                yield replace(found, found={**found.found, **more})
                warm = []

    def answer_block(
        self, key: str, made: Mapping[str, BenchMethod], target: Target, warm: Sequence[Item], tick: Tick
    ) -> UnitResult:
        """Answer the pairs of one block by all methods in turn."""
        asked = list(self.asked(self.work_of(key)))
        results = measure(made, asked, self.repeats, warm, tick, before=self.first_of(key) * self.repeats)
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

    def run(self, target: Target | None = None, cores: "Cores | None" = None, tick: Tick = lambda _: None) -> "Answers":
        """Answer all pairs with a given target, or with one that is loaded for it."""
        return self.pooled(list(self.measure(self.keys, Setting(cores, Path(), tick), target)))

    def pooled(self, units: Sequence[UnitResult]) -> "Answers":
        """The answers of its blocks among these."""
        return pooled([unit for unit in units if unit.key in set(self.keys)])

    def table(self, found: "Answers", names: Sequence[str] = ()) -> FigureTable:
        """A row for each variant, or for those that are named."""
        return figure_table(self.title, self.columns, [(found, name) for name in names or found.names], self.note)

    def rows(self, found: "Answers") -> list[dict[str, Any]]:
        """Return the table's rows as plain values."""
        return [rows_json(self.columns, found, name) for name in found.names]

    def unequal(self, found: "Answers") -> tuple[str, ...]:
        """Variants of ours that must give the target's own tokens and did not; none for sampled answers."""
        if self.work.temperature > 0:
            return ()
        ours = [one.name for one in self.variants if one.lossless and one.drafts not in HUGGING_FACE]
        return tuple(name for name in ours if name in found.names and len(set(found.equal(name))) > 1)


@dataclass(frozen=True, slots=True)
class Answers:
    """The runs of several blocks, and the figures that columns are made of; intervals are drawn over scenes."""

    pairs: tuple[Mapping[str, Any], ...]
    results: Results
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def names(self) -> tuple[str, ...]:
        """The variants."""
        return tuple(self.results.runs)

    @property
    def scenes(self) -> list[int]:
        """The scene of each pair."""
        return [pair["scene"] for pair in self.pairs]

    @property
    def alone(self) -> str:
        """The faster way to run the target alone."""
        ran = [name for name in (OWN, ALL) if name in self.results.runs]
        return min(ran, key=lambda name: sum(self.results.seconds(name)), default=OWN)

    @property
    def by_scene(self) -> Results:
        """The runs of each scene together: questions about one clip are no independent evidence, and are drawn at once.

        >>> one, pairs = Run((1,), 2.0, 1.0, {}, 1), ({"scene": 7}, {"scene": 7}, {"scene": 8})
        >>> Answers(pairs, Results({"target": [[one], [one], [one]]})).by_scene.seconds("target")
        [4.0, 2.0]
        """
        grouped: dict[str, list[list[Run]]] = {}
        for name, found in self.results.runs.items():
            each: dict[int, list[Run]] = {scene: [] for scene in self.scenes}
            for scene, runs in zip(self.scenes, found, strict=True):
                each[scene] += runs
            grouped[name] = list(each.values())
        return Results(grouped)

    @property
    def by_kind(self) -> dict[str, "Answers"]:
        """The pairs about each kind of question, in order of appearance.

        >>> one, pairs = Run((1,), 2.0, 1.0, {}, 1), ({"scene": 7, "kind": "road"}, {"scene": 8, "kind": "weather"})
        >>> found = Answers(pairs, Results({"target": [[one], [one]]}), {"target": ("Wide.", "Dry.")}).by_kind
        >>> {kind: each.answers["target"] for kind, each in found.items()}
        {'road': ('Wide.',), 'weather': ('Dry.',)}
        """
        chosen: dict[str, list[int]] = {}
        for index, pair in enumerate(self.pairs):
            chosen.setdefault(pair["kind"], []).append(index)
        return {kind: self._of(indices) for kind, indices in chosen.items()}

    def _of(self, indices: Sequence[int]) -> "Answers":
        runs = {name: [found[index] for index in indices] for name, found in self.results.runs.items()}
        answers = {name: tuple(texts[index] for index in indices) for name, texts in self.answers.items()}
        return Answers(tuple(self.pairs[index] for index in indices), Results(runs), answers)

    def speedup(self, name: str, against: str | None = None, *, per_token: bool = False) -> Interval:
        """Σ time of the target alone, the faster way, over Σ time of a variant."""
        return self.by_scene.speedup(name, against or self.alone, per_token=per_token)

    def costs(self, name: str, against: str | None = None) -> PairedCosts:
        """Seconds of a variant and of the target alone, or of another, pair by pair: what a test over scenes takes."""
        seconds = self.results.seconds
        return PairedCosts(seconds(against or self.alone), seconds(name), self.scenes)

    def tau(self, name: str) -> Interval:
        """Tokens of the answers per verify pass."""
        return self.by_scene.tau(name)

    def equal(self, name: str, to: str = OWN) -> tuple[int, int]:
        """Number of runs whose tokens are the target's own, and number of runs."""
        own = [runs[0].tokens for runs in self.results.runs[to]]
        same = [run.tokens == tokens for tokens, runs in zip(own, self.results.runs[name], strict=True) for run in runs]
        return sum(same), len(same)

    def stage(self, name: str, *stages: str) -> Interval:
        """Mean seconds of some stages, over runs."""
        return self.mean_of(name, lambda run: sum(run.stages_s.get(stage, 0.0) for stage in stages))

    def mean(self, name: str, figure: str) -> Interval:
        """Mean of a figure of runs."""
        return self.mean_of(name, lambda run: getattr(run, figure))

    def mean_of(self, name: str, figure: Callable[[Run], float]) -> Interval:
        """Mean of what is made of each run."""
        runs = self.by_scene.runs[name]
        return ratio([sum(map(figure, each)) for each in runs], [len(each) for each in runs])

    def reading_share(self, name: str) -> Interval:
        """ρ: the share of reading, up to and with the prefill's last piece, in the time of an answer."""
        scenes = self.by_scene
        reading = [sum(run.stages_s.get(stage, 0.0) for run in runs for stage in READING) for runs in scenes.runs[name]]
        return ratio(reading, scenes.seconds(name))

    def right_facts(self, name: str) -> list[int]:
        """Facts that the first answer to each pair gets right."""
        return [
            sum(score(pair["facts"], text).values()) for pair, text in zip(self.pairs, self.answers[name], strict=True)
        ]

    def facts(self, name: str, minus: str | None = None) -> Interval:
        """Share of the facts that answers get right, or that minus another variant's on the same pairs."""
        other = [0] * len(self.pairs) if minus is None else self.right_facts(minus)
        gained = [own - theirs for own, theirs in zip(self.right_facts(name), other, strict=True)]
        return ratio(gained, [len(pair["facts"]) for pair in self.pairs])


def runs_of(
    studies: Callable[[C, Path | None], Sequence[Study]],
) -> tuple[Callable[[C], Sequence[str]], Callable[[C, Sequence[str], Setting], Iterator[UnitResult]]]:
    """The units of an experiment that is made of studies, and what runs them, study after study.

    Args:
        studies: of a configuration; clips that are read from files inside the clock are written below the folder.
    """

    def units(config: C) -> list[str]:
        return [key for study in studies(config, None) for key in study.keys]

    def measure(config: C, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
        for study in studies(config, setting.work):
            yield from study.measure(keys, setting)

    return units, measure


def pooled(units: Sequence[UnitResult]) -> Answers:
    """Join the answers of blocks that had the same variants."""
    names = list(units[0].found["methods"])
    runs: dict[str, list[list[Run]]] = {name: [] for name in names}
    answers: dict[str, list[str]] = {name: [] for name in names}
    for unit in units:
        for name in names:
            runs[name] += [[run_of(run) for run in pair] for pair in unit.found["methods"][name]]
            answers[name] += unit.found["answers"][name]
    pairs = tuple(pair for unit in units for pair in unit.found["pairs"])
    return Answers(pairs, Results(runs), {name: tuple(texts) for name, texts in answers.items()})


def run_of(found: Mapping[str, Any]) -> Run:
    """Read a run from its plain values."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return Run(**values)


def same_tokens(*, per_token: bool = False) -> Callable[[Answers, str], str]:
    """Make the function that shows, for a row, how many answers are the target's own."""

    def cell(found: Answers, name: str) -> str:
        lossy = any(run.lossy for run in found.results.of(name))
        return "–" if per_token else shown(found.equal(name)) + (" (lossy)" if lossy else "")

    return cell


def tenths(value: Interval) -> str:
    """An interval with one digit."""
    return value.shown(digits=1)


def name_column(head: str = "", key: str = "") -> FigureColumn:
    """The names of the rows."""
    return FigureColumn(key, head, lambda _, name: name)


def speed_columns(head: str, *, per_token: bool = False) -> tuple[FigureColumn, ...]:
    """Columns of equality, τ, times (means over runs) and the speed-up, which has its own head."""
    return (
        FigureColumn("", "same tokens", same_tokens(per_token=per_token)),
        FigureColumn("equal", "", Answers.equal),
        FigureColumn("tau", "τ", Answers.tau),
        FigureColumn("ttft_ms", "TTFT, ms", lambda found, name: found.mean(name, "ttft_s").scaled(1e3), tenths),
        FigureColumn("e2e_ms", "E2E, ms", lambda found, name: found.mean(name, "total_s").scaled(1e3), tenths),
        FigureColumn("speedup", head, lambda found, name: found.speedup(name, per_token=per_token)),
    )


def bar(label: str, one: Interval, style: str) -> IntervalBar:
    """An interval in a chart of bars."""
    return IntervalBar(label, one.value, one.low, one.high, one.n, style)


def point(x: float, one: Interval) -> tuple[float, float, float, float]:
    """An interval on a curve."""
    return x, one.value, one.low, one.high


def faults_of(groups: Iterable[tuple[Study, Answers]]) -> RowFaults:
    """Collect the faults of rows and the engine's notes, of all studies; each row is named once."""
    unequal: list[str] = []
    lost: list[str] = []
    notes: list[tuple[str, str]] = []
    for study, found in groups:
        unequal += study.unequal(found)
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


def sure(found: Answers, repeats: int, together: str = "all rows of a table") -> str:
    """State the certainty: pairs, scenes, repeats, what was interleaved, and how many are enough."""
    return (
        f"{len(found.pairs)} held-out pairs of scene and question, {repeats} {'run' if repeats == 1 else 'runs'} each, "
        f"{together} interleaved in one process; times are means, ratios are of sums, and intervals are 95 % bootstrap "
        f"over scenes.{few_scenes(found)}"
    )


def few_scenes(found: Answers) -> str:
    """A warning, where there are too few scenes for a bootstrap to draw from."""
    few = len({*found.scenes}) < FEW_PAIRS
    return f" Fewer than {FEW_PAIRS} scenes: the intervals are narrower than the truth." if few else ""
