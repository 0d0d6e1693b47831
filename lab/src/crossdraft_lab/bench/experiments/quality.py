"""Experiment 5: what answers are worth: lossless rows must be equal to the target's, lossy ones lie on a curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossdraft.drawing.charts import ChartCurve, curves
from crossdraft.drawing.shapes import Drawing
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, UnitResult
from crossdraft_lab.bench.figure import Figure
from crossdraft_lab.bench.quality import ScoredAnswer, accuracies, text_scores
from crossdraft_lab.bench.significance import ALPHA, holm, least_scenes, paired_difference
from crossdraft_lab.bench.study import (
    ALL,
    OWN,
    Answers,
    FigureColumn,
    Study,
    faults_of,
    figure_table,
    point,
    rows_json,
    runs_of,
    sure,
)
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.scenes import stated

# Kinds of question that a short answer is right for, and the fact that is asked for.
SHORT = {
    "layout": "layout", "ego motion": "ego", "lead motion": "lead.motion", "cyclist": "cyclist",
    "count": "people.count", "presence": "presence", "colour": "lead.colour", "action": "driver",
}  # fmt: skip
SAMPLED = 1.0  # the temperature at which rules for sampled answers are compared
GREEDY = "greedy"


def _rule(spec: str) -> Variant:
    return Variant(f"event, {spec}", "event", options={"rule": spec})


@dataclass(frozen=True, slots=True)
class QualityConfig:
    """Lossless drafters, and lossy compressions and rules with their settings, from mild to strong."""

    drafters: tuple[str, ...] = ("event", "glance", "ngram", "memory", "eagle2", "eaglevlm")
    compressions: tuple[str, ...] = (
        "fastv:keep=0.75", "fastv:keep=0.5", "fastv:keep=0.25", "fastv:keep=0.1",
        "frames:count=4", "frames:count=2", "frames:count=1", "pool:factor=2", "pool:factor=3", "token_packer",
    )  # fmt: skip
    rules: tuple[str, ...] = (
        "typical:eps=0.3", "typical:eps=0.09", "typical:eps=0.01", "ensemble:w=0.75", "ensemble:w=0.5",
        "ensemble:w=0.25",
    )  # fmt: skip
    pairs: int = 96
    block: int = 16
    warm_ups: int = 3
    max_new_tokens: int = 96


def studies(config: QualityConfig, folder: Path | None = None) -> list[Study]:
    """Greedy answers, and sampled ones for the rules; compressed targets have all cores."""
    alone = Variant(OWN), Variant(ALL)
    compressed = (Variant(spec, ALL, spec) for spec in config.compressions)
    groups = {
        GREEDY: ((*alone, *map(Variant, config.drafters), *compressed), 0.0),
        "sampled": ((*alone, Variant("event, speculative", "event"), *map(_rule, config.rules)), SAMPLED),
    }
    return [
        Study(
            variants,
            Workload(config.pairs, max_new_tokens=config.max_new_tokens, temperature=warm),
            block=config.block,
            warm_ups=config.warm_ups,
            prefix=f"{name}, pairs",
        )
        for name, (variants, warm) in groups.items()
    ]


@dataclass(slots=True)
class QualityRow:
    """One row: a variant among the answers of its group, and the p values of its lost facts; see `corrected`."""

    found: Answers
    variant: Variant
    sampled: bool
    p: float | None = None
    adjusted_p: float | None = None
    facts: Any = field(init=False)
    gained: Any = field(init=False)
    speedup: Any = field(init=False)

    def __post_init__(self) -> None:
        name, found = self.variant.name, self.found
        self.facts, self.gained = found.facts(name), found.facts(name, OWN)
        self.speedup = found.speedup(name, per_token=self.sampled or not self.variant.lossless)
        if not self.variant.lossless:
            right = found.right_facts
            self.p = paired_difference(name, right(name), right(OWN), found.scenes)[1]

    @property
    def equal(self) -> tuple[int, int]:
        """Answers that are the target's own, of how many."""
        return self.found.equal(self.variant.name)

    @property
    def worse(self) -> bool:
        """True if fewer facts are right: both the interval and the corrected test say so."""
        return self.adjusted_p is not None and self.adjusted_p < ALPHA and self.gained.high < 0

    @property
    def short(self) -> list[Figure]:
        """Accuracies of the values that answers state of what was asked; none where no question has a short answer."""
        asked = [
            ScoredAnswer(pair["scene"], stated(slot, text), (pair["facts"][slot],), pair["kind"])
            for pair, text in zip(self.found.pairs, self.found.answers[self.variant.name], strict=True)
            if (slot := SHORT.get(pair["kind"], "")) in pair["facts"]
        ]
        return accuracies(asked) if asked else []

    def scores(self, references: Sequence[str]) -> list[Figure]:
        """BLEU-4, ROUGE-L and CIDEr against one other text for each answer."""
        each = zip(self.found.pairs, self.found.answers[self.variant.name], references, strict=True)
        return text_scores([ScoredAnswer(pair["scene"], text, (reference,)) for pair, text, reference in each])

    @property
    def metrics(self) -> list[Figure]:
        """Scores against the right answer."""
        return self.scores([pair["reference"] for pair in self.found.pairs])

    @property
    def own(self) -> list[Figure]:
        """Scores against the target's own answer."""
        return self.scores(self.found.answers[OWN])


def _figures(found: Sequence[Figure]) -> list[dict[str, object]]:
    return [one.to_json() for one in found]


COLUMNS = (
    FigureColumn("", "", lambda row: row.variant.name),
    FigureColumn("lossless", "lossless", lambda row: row.variant.lossless),
    FigureColumn("", "the target's answers", lambda row: None if row.sampled else row.equal),
    FigureColumn("equal", "", lambda row: row.equal),
    FigureColumn("facts", "facts right", lambda row: row.facts),
    FigureColumn("facts_gained", "minus the target's", lambda row: row.gained),
    FigureColumn("p_wilcoxon", "", lambda row: row.p, json=lambda p: p),
    FigureColumn("p_holm", "p, Holm", lambda row: row.adjusted_p,
                 lambda p: "–" if p is None else f"{p:.2g}", lambda p: p),
    FigureColumn("", "VQA accuracy", lambda row: row.short[0].interval if row.short else None),
    FigureColumn("short_answers", "", lambda row: row.short, json=_figures),
    FigureColumn("metrics", "", lambda row: row.metrics, json=_figures),
    FigureColumn("metrics_with_target", "", lambda row: row.own, json=_figures),
    FigureColumn("speedup", "", lambda row: row.speedup),
    FigureColumn("prompt_tokens", "prompt tokens", lambda row: row.found.mean(row.variant.name, "prompt_tokens").value,
           lambda count: f"{count:.0f}", lambda count: round(count, 1)),
    FigureColumn("", "speed-up", lambda row: row.speedup),
)  # fmt: skip


def corrected(groups: Mapping[str, tuple[Study, Answers]]) -> dict[str, dict[str, QualityRow]]:
    """The rows of all groups, their p values after Holm's correction over all lossy ones."""
    rows = {
        name: {one.name: QualityRow(found, one, study.work.temperature > 0) for one in study.variants}
        for name, (study, found) in groups.items()
    }
    tested = [row for each in rows.values() for row in each.values() if row.p is not None]
    for row, p in zip(tested, holm([row.p or 0.0 for row in tested]), strict=True):
        row.adjusted_p = p
    return rows


def summarise(config: QualityConfig, found: Sequence[UnitResult]) -> Findings:
    """A table for greedy answers, one for sampled ones; the curve of what is lost for what is gained."""
    groups = {name: (plan, plan.pooled(found)) for name, plan in zip((GREEDY, "sampled"), studies(config), strict=True)}
    rows = corrected(groups)
    greedy, asked = rows[GREEDY], groups[GREEDY][1]
    wrong = [name for name, row in greedy.items() if row.variant.lossless and row.equal[0] < row.equal[1]]
    lossless = sum(row.variant.lossless for name, row in greedy.items() if name != OWN)
    lossy = {name: row for each in rows.values() for name, row in each.items() if not row.variant.lossless}
    worse = [name for name, row in lossy.items() if row.worse]
    scenes, least = len({*asked.scenes}), least_scenes(len(lossy))
    few = "" if scenes >= least else f" {scenes} scenes cannot show it of {len(lossy)} rows; {least} can."
    equality = (
        f"All {lossless} lossless rows are equal to the target's, answer by answer."
        if not wrong
        else f"NOT EQUAL to the target's, and should be: {'; '.join(wrong)}."
    )
    return Findings(
        found=(
            f"{equality} Of {len(lossy)} lossy rows {len(worse)} get significantly fewer facts right than the target "
            f"({greedy[OWN].facts.value:.2f} of them)."
        ),
        sure=(
            f"{sure(asked, 1)} Facts are judged by rules that know the scene. Fewer are right where the "
            "interval says so and Wilcoxon's signed-rank test over scenes, with Holm's correction over all lossy rows, "
            f"has p < {ALPHA:g}.{few}"
        ),
        tables=tuple(_table(name, list(each.values())) for name, each in rows.items()),
        figure=_figure(config, rows),
        figures={name: {one: rows_json(COLUMNS, row) for one, row in each.items()} for name, each in rows.items()},
        negative=(f"Fewer facts right than the target's own answers: {'; '.join(worse)}.",) if worse else (),
        faults=faults_of(groups.values()),
    )


def _table(name: str, rows: Sequence[QualityRow]) -> FigureTable:
    scores = [one.name for one in rows[0].metrics]
    texts = tuple(
        FigureColumn("", head, lambda row, which=which, at=at: getattr(row, which)[at].interval)
        for which, end in (("metrics", ""), ("own", " with the target"))
        for at, head in enumerate(f"{score}{end}" for score in scores)
    )
    return figure_table(
        f"Quality of {name} answers" + (f", temperature {SAMPLED:g}" if name != GREEDY else ""),
        (*COLUMNS[:-2], *texts, *COLUMNS[-2:]),
        [(row,) for row in rows],
        "Scores are against the world's right answer, and against the target's own: "
        + "; ".join(f"{one.name}: {one.note}" for one in rows[0].metrics)
        + ". VQA accuracy is exact match of the short answer that is stated, where the question has one. Speed-ups of "
        "rows whose answers differ are per token.",
    )


def _figure(config: QualityConfig, rows: Mapping[str, Mapping[str, QualityRow]]) -> Drawing:
    """Facts right over the speed-up, a curve for each lossy method."""
    every = [(name, row) for each in rows.values() for name, row in each.items() if not row.variant.lossless]
    methods: dict[str, list[tuple[float, float, float, float]]] = {
        spec.partition(":")[0]: [] for spec in (*config.compressions, *config.rules)
    }
    for name, row in every:
        methods[name.removeprefix("event, ").partition(":")[0]].append(point(row.speedup.value, row.facts))
    own, span = rows[GREEDY][OWN].facts.value, [row.speedup.value for _, row in every]
    level = tuple((x, own, own, own) for x in (min(span), max(span)))
    return curves(
        "Facts right over the speed-up, lossy methods",
        [
            *(ChartCurve(method, tuple(sorted(points))) for method, points in methods.items()),
            ChartCurve("the target's own answers", level, dashed=True),
        ],
        "speed-up over the target alone, per token",
        "share of facts right",
    )


QUALITY = Experiment(
    "quality",
    5,
    "Quality",
    "Are lossless answers equal to the target's own, and what do lossy ones lose for what they gain?",
    QualityConfig(),
    QualityConfig(
        drafters=("event", "glance", "memory", "eagle2"),
        compressions=("fastv:keep=0.5", "fastv:keep=0.1", "frames:count=4", "frames:count=1", "pool:factor=2"),
        rules=("typical:eps=0.09", "ensemble:w=0.5"),
        pairs=8, block=8, warm_ups=1,
    ),
    *runs_of(studies),
    summarise,
)  # fmt: skip
