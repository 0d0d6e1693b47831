"""One record for a comparison: methods that answer (variants), questions (workload), and figures of each (columns).

A study runs in blocks: some pairs, answered by all variants in turn, so that a disturbance of the machine affects all
of them. Table, JSON and faults are made from the columns here, for every bench and every experiment.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.target import Target
from crossdraft_lab.bench.assembly import Models, close_all
from crossdraft_lab.bench.charts import IntervalBar
from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.experiments.record import FigureTable, RowFaults, Setting, Tick, UnitResult
from crossdraft_lab.bench.forking import forking
from crossdraft_lab.bench.measure import BenchMethod, Results, Run, measure
from crossdraft_lab.bench.significance import PairedCosts
from crossdraft_lab.bench.specs import HUGGING_FACE
from crossdraft_lab.bench.statistics import FEW_PAIRS, Interval, Quartiles, ratio
from crossdraft_lab.bench.variants import Variant, make_variant
from crossdraft_lab.bench.workload import Item, Workload, counting, items, read_prompts
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
    """Figure as JSON values: intervals and quartiles by their own keys, other numbers rounded.

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
    """One figure of each row, and its form in table and JSON.

    Args:
        key: key in the JSON; "" for a figure of the table alone.
        head: head in the table; "" for a figure of the JSON alone.
        of: computes the figure: from answers and a row's name in a study, from the row in `rows_table` and `rows_json`.
        show: formats the figure for the table.
        json: converts the figure for the JSON.
    """

    key: str
    head: str
    of: Callable[..., Any]
    show: Callable[[Any], str] = shown
    json: Callable[[Any], Any] = plain


def rows_json(columns: Sequence[FigureColumn], *row: Any) -> dict[str, Any]:
    """Figures of a row as plain values."""
    return {column.key: column.json(column.of(*row)) for column in columns if column.key}


def rows_table(columns: Sequence[FigureColumn], rows: Iterable[Any], title: str | None = None) -> "Table":
    """Table of the figures of rows, for people; the first column names the rows."""
    return terminal_table(figure_table(title or "", columns, [(row,) for row in rows]))


def figure_table(
    title: str, columns: Sequence[FigureColumn], rows: Iterable[Sequence[Any]], note: str = ""
) -> FigureTable:
    """Table of a report; each of `rows` holds the arguments of the columns' functions."""
    heads = [column for column in columns if column.head or column is columns[0]]
    cells = tuple(tuple(column.show(column.of(*row)) for column in heads) for row in rows)
    return FigureTable(title, tuple(column.head for column in heads), cells, note)


def terminal_table(found: FigureTable) -> "Table":
    """Convert a table of figures into one for the terminal."""
    from rich.markup import escape

    made = table(found.title or None, found.heads[0], found.heads[1:], found.note or None)
    for row in found.rows:
        made.add_row(*map(escape, row))
    return made


def _nothing(*_: object) -> AbstractContextManager[dict[str, Any]]:
    return nullcontext({})


@dataclass(frozen=True, slots=True)
class Study:
    """A comparison of variants on a workload.

    Args:
        variants: the methods; where speed matters, the first two are the target alone, on its own core and on all.
        work: the pairs; a block holds `block` successive ones.
        columns: figures of each variant.
        block: number of pairs in a block; whole clips, where there are several questions about each; 0 = all.
        repeats: number of runs of each pair.
        warm_ups: number of pairs of another split that are answered first.
        prefix: first part of the keys.
        models: models of the pair.
        title, note: texts of its table.
        more: context around each block, made from its key, the methods and the target; its values join the block's.
        prepare: called with each method once it is made.
        asked: makes the pairs of a part of the workload.
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
        """Keys of the blocks."""
        return [f"{self.prefix} {first}" for first in range(0, self.work.pairs, self.block or self.work.pairs)]

    def first_of(self, key: str) -> int:
        """Number of a block's first pair."""
        return int(key.removeprefix(f"{self.prefix} "))

    def work_of(self, key: str) -> Workload:
        """Workload of a block's pairs."""
        first = self.first_of(key)
        pairs = min(self.block or self.work.pairs, self.work.pairs - first)
        return replace(self.work, pairs=pairs, first=self.work.first + first // self.work.questions)

    @property
    def warm_up_items(self) -> list[Item]:
        """Pairs of the validation split, or the prompts behind those asked; nothing is learned from their answers."""
        if self.work.prompts is not None and not next(items(replace(self.work, pairs=1))).request.visuals:
            return counting(self.work, self.warm_ups)
        if self.work.prompts is None:
            asked = self.asked(replace(self.work, pairs=self.warm_ups or 1, first=0, split="validation"))
        else:
            count = len(read_prompts(self.work.prompts, self.work.kinds))
            every = list(items(replace(self.work, pairs=count, first=0)))
            asked = chain(every[self.work.first + self.work.pairs :], every)
        asked = islice(asked, self.warm_ups)
        return [replace(item, request=replace(item.request, namespace=None)) for item in asked]

    @property
    def runs(self) -> int:
        """Number of answers that the study asks for: the steps of a progress bar."""
        return len(self.variants) * (self.warm_ups + self.work.pairs * self.repeats)

    @contextmanager
    def loaded(self, setting: Setting, target: Target | None = None) -> Iterator[tuple[Target, dict[str, BenchMethod]]]:
        """Load a target and the methods that answer with it, on the cores of the pair; close them afterwards."""
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
        """Answer the pairs of the blocks whose keys are given; the first block warms up."""
        pending = [key for key in self.keys if key in keys]
        if not pending:
            return
        with self.loaded(setting, target) as (loaded, made):
            warm = self.warm_up_items
            for key in pending:
                with self.more(key, made, loaded) as more:
                    asked = list(self.asked(self.work_of(key)))
                    found = self.answer_block(key, asked, made, loaded, warm, setting.tick)
                yield replace(found, found={**found.found, **more})
                warm = []

    def answer_block(
        self, key: str, asked: Sequence[Item], made: Mapping[str, BenchMethod], target: Target,
        warm: Sequence[Item], tick: Tick,
    ) -> UnitResult:  # fmt: skip
        """Answer the pairs of one block by all methods in turn."""
        results = measure(made, asked, self.repeats, warm, tick, before=self.first_of(key) * self.repeats)
        pairs = [
            {
                "scene": item.seed,
                "kind": item.kind,
                "question": item.request.question,
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
        """Answer all pairs with the given target, or with one that is loaded for the study."""
        return self.pooled(list(self.measure(self.keys, Setting(cores, Path(), tick), target)))

    def pooled(self, units: Sequence[UnitResult]) -> "Answers":
        """Join the answers of those units that are blocks of this study."""
        return pooled([unit for unit in units if unit.key in set(self.keys)])

    def table(self, found: "Answers", names: Sequence[str] = ()) -> FigureTable:
        """Table with a row for each variant, or for the variants in `names`."""
        return figure_table(self.title, self.columns, [(found, name) for name in names or found.names], self.note)

    def rows(self, found: "Answers") -> list[dict[str, Any]]:
        """Return the table's rows as plain values."""
        return [rows_json(self.columns, found, name) for name in found.names]

    def unequal(self, found: "Answers") -> tuple[str, ...]:
        """Our variants that must give the target's own tokens and did not; empty for sampled answers."""
        if self.work.temperature > 0:
            return ()
        ours = [one.name for one in self.variants if one.lossless and one.drafts not in HUGGING_FACE]
        return tuple(name for name in ours if name in found.names and len(set(found.equal(name))) > 1)


@dataclass(frozen=True, slots=True)
class Answers:
    """Runs of several blocks, and the figures that columns show; intervals are drawn over scenes."""

    pairs: tuple[Mapping[str, Any], ...]
    results: Results
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants."""
        return tuple(self.results.runs)

    @property
    def scenes(self) -> list[int]:
        """Scene of each pair."""
        return [pair["scene"] for pair in self.pairs]

    @property
    def alone(self) -> str:
        """Name of the faster way to run the target alone."""
        ran = [name for name in (OWN, ALL) if name in self.results.runs]
        return min(ran, key=lambda name: sum(self.results.seconds(name)), default=OWN)

    @property
    def by_scene(self) -> Results:
        """Runs grouped by scene: questions about one clip are no independent evidence, and are drawn together.

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
        """Answers to each kind of question, in order of appearance.

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
        """Seconds of a variant and of the target alone, or of `against`, pair by pair, for a test over scenes."""
        seconds = self.results.seconds
        return PairedCosts(seconds(against or self.alone), seconds(name), self.scenes)

    def tau(self, name: str) -> Interval:
        """Tokens of the answers per verify pass."""
        return self.by_scene.tau(name)

    def equal(self, name: str, to: str = OWN) -> tuple[int, int]:
        """Number of runs whose tokens equal those of `to`, by default the target's own, and number of runs."""
        own = [runs[0].tokens for runs in self.results.runs[to]]
        same = [run.tokens == tokens for tokens, runs in zip(own, self.results.runs[name], strict=True) for run in runs]
        return sum(same), len(same)

    def stage(self, name: str, *stages: str) -> Interval:
        """Mean seconds of the given stages together, over runs."""
        return self.mean_of(name, lambda run: sum(run.stages_s.get(stage, 0.0) for stage in stages))

    def mean(self, name: str, figure: str) -> Interval:
        """Mean of a field of the runs."""
        return self.mean_of(name, lambda run: getattr(run, figure))

    def mean_of(self, name: str, figure: Callable[[Run], float]) -> Interval:
        """Mean of a function of each run."""
        runs = self.by_scene.runs[name]
        return ratio([sum(map(figure, each)) for each in runs], [len(each) for each in runs])

    def reading_share(self, name: str) -> Interval:
        """ρ: the prefill's share, up to and with its last piece, in the time of an answer."""
        scenes = self.by_scene
        reading = [sum(run.stages_s.get(stage, 0.0) for run in runs for stage in READING) for runs in scenes.runs[name]]
        return ratio(reading, scenes.seconds(name))

    def right_facts(self, name: str) -> list[int]:
        """Number of facts that the first answer to each pair gets right."""
        return [
            sum(score(pair["facts"], text).values()) for pair, text in zip(self.pairs, self.answers[name], strict=True)
        ]

    def facts(self, name: str, minus: str | None = None) -> Interval:
        """Share of facts that answers get right; with `minus`, less the share of that variant on the same pairs."""
        other = [0] * len(self.pairs) if minus is None else self.right_facts(minus)
        gained = [own - theirs for own, theirs in zip(self.right_facts(name), other, strict=True)]
        return ratio(gained, [len(pair["facts"]) for pair in self.pairs])


def runs_of(
    studies: Callable[[C, Path | None], Sequence[Study]],
) -> tuple[Callable[[C], Sequence[str]], Callable[[C, Sequence[str], Setting], Iterator[UnitResult]]]:
    """Make the `units` and `measure` functions of an experiment that runs studies one after another.

    Args:
        studies: makes the studies of a configuration; the folder takes clips that are read within the measured time.
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
    """Make the function that shows, for a row, the number of answers that are the target's own."""

    def cell(found: Answers, name: str) -> str:
        lossy = any(run.lossy for run in found.results.of(name))
        return "–" if per_token else shown(found.equal(name)) + (" (lossy)" if lossy else "")

    return cell


def tenths(value: Interval) -> str:
    """Format an interval with one digit."""
    return value.shown(digits=1)


def name_column(head: str = "", key: str = "") -> FigureColumn:
    """Column with the names of the rows."""
    return FigureColumn(key, head, lambda _, name: name)


def speed_columns(head: str, *, per_token: bool = False) -> tuple[FigureColumn, ...]:
    """Columns of equality, τ, times (means over runs), and the speed-up under `head`."""
    return (
        FigureColumn("", "same tokens", same_tokens(per_token=per_token)),
        FigureColumn("equal", "", Answers.equal),
        FigureColumn("tau", "τ", Answers.tau),
        FigureColumn("ttft_ms", "TTFT, ms", lambda found, name: found.mean(name, "ttft_s").scaled(1e3), tenths),
        FigureColumn("e2e_ms", "E2E, ms", lambda found, name: found.mean(name, "total_s").scaled(1e3), tenths),
        FigureColumn("speedup", head, lambda found, name: found.speedup(name, per_token=per_token)),
    )


def bar(label: str, one: Interval, style: str) -> IntervalBar:
    """Bar of an interval in a chart."""
    return IntervalBar(label, one.value, one.low, one.high, one.n, style)


def point(x: float, one: Interval) -> tuple[float, float, float, float]:
    """Point of a curve with its interval: x, value, low, high."""
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
    """Lines with a row's name and a note on its answers, each once.

    >>> note_lines([("event", "Lost."), ("event", "Lost.")])
    ('event, 2 answers: Lost.',)
    """
    counts = Counter(notes).items()
    return tuple(f"{name}, {n} {'answer' if n == 1 else 'answers'}: {note}" for (name, note), n in counts)


def sure(found: Answers, repeats: int, together: str = "all rows of a table") -> str:
    """State the certainty: pairs, scenes, repeats, rows that ran interleaved, and how many scenes are enough."""
    return (
        f"{len(found.pairs)} held-out pairs of scene and question, {repeats} {'run' if repeats == 1 else 'runs'} each, "
        f"{together} interleaved in one process; times are means, ratios are of sums, and intervals are 95 % bootstrap "
        f"over scenes.{few_scenes(found)}"
    )


def few_scenes(found: Answers) -> str:
    """Warning, where there are too few scenes for a bootstrap; else empty."""
    few = len({*found.scenes}) < FEW_PAIRS
    return f" Fewer than {FEW_PAIRS} scenes: the intervals are narrower than the truth." if few else ""
