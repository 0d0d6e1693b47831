"""Experiment 5: quality of answers. Lossless rows must equal the target's answers; lossy ones lie on a curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from crossdraft.drawing.shapes import Drawing
from crossdraft_lab.bench.charts import ChartCurve, curves
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, UnitResult
from crossdraft_lab.bench.quality import ScoredAnswer, accuracies, text_scores
from crossdraft_lab.bench.significance import ALPHA, holm, least_scenes, paired_difference
from crossdraft_lab.bench.statistics import Figure
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

# Kinds of question that a short answer suffices for, and the fact that is asked for.
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
    """Two studies: greedy answers, and sampled ones for the rules; compressed targets have all cores."""
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


Row = dict[str, Any]


def rows_of(study: Study, found: Answers) -> dict[str, Row]:
    """Row of each variant of a group.

    `equal`: answers that are the target's own, of how many; `p`: of a lossy row's lost facts, see `corrected`; `short`:
    accuracies of the values that answers state of the fact asked for, none where no question has a short answer;
    `metrics` and `own`: BLEU-4, ROUGE-L and CIDEr against the right answer, and against the target's own.
    """
    sampled, right, rows = study.work.temperature > 0, found.right_facts, dict[str, Row]()
    for one in study.variants:
        name, texts = one.name, found.answers[one.name]
        pairs = list(zip(found.pairs, texts, strict=True))
        asked = [
            ScoredAnswer(pair["scene"], stated(slot, text), (pair["facts"][slot],), pair["kind"])
            for pair, text in pairs
            if (slot := SHORT.get(pair["kind"], "")) in pair["facts"]
        ]
        scored = [
            text_scores([ScoredAnswer(pair["scene"], *each) for (pair, _), each in zip(pairs, references, strict=True)])
            for references in (
                [(text, (pair["reference"],)) for pair, text in pairs],
                [(text, (own,)) for text, own in zip(texts, found.answers[OWN], strict=True)],
            )
        ]
        lost = None if one.lossless else paired_difference(name, right(name), right(OWN), found.scenes)[1]
        rows[name] = {
            "name": name,
            "lossless": one.lossless,
            "sampled": sampled,
            "equal": found.equal(name),
            "facts": found.facts(name),
            "gained": found.facts(name, OWN),
            "p": lost,
            "p_holm": None,
            "short": accuracies(asked) if asked else [],
            "metrics": scored[0],
            "own": scored[1],
            "speedup": found.speedup(name, per_token=sampled or not one.lossless),
            "prompt_tokens": found.mean(name, "prompt_tokens").value,
        }
    return rows


def _figures(found: Sequence[Figure]) -> list[dict[str, object]]:
    return [one.to_json() for one in found]


def _same(value: Any) -> Any:
    return value


COLUMNS = (
    FigureColumn("", "", itemgetter("name")),
    FigureColumn("lossless", "lossless", itemgetter("lossless")),
    FigureColumn("", "the target's answers", lambda row: None if row["sampled"] else row["equal"]),
    FigureColumn("equal", "", itemgetter("equal")),
    FigureColumn("facts", "facts right", itemgetter("facts")),
    FigureColumn("facts_gained", "minus the target's", itemgetter("gained")),
    FigureColumn("p_wilcoxon", "", itemgetter("p"), json=_same),
    FigureColumn("p_holm", "p, Holm", itemgetter("p_holm"), lambda p: "–" if p is None else f"{p:.2g}", _same),
    FigureColumn("", "VQA accuracy", lambda row: row["short"][0].interval if row["short"] else None),
    FigureColumn("short_answers", "", itemgetter("short"), json=_figures),
    FigureColumn("metrics", "", itemgetter("metrics"), json=_figures),
    FigureColumn("metrics_with_target", "", itemgetter("own"), json=_figures),
    FigureColumn("speedup", "", itemgetter("speedup")),
    FigureColumn("prompt_tokens", "prompt tokens", itemgetter("prompt_tokens"),
           lambda count: f"{count:.0f}", lambda count: round(count, 1)),
    FigureColumn("", "speed-up", itemgetter("speedup")),
)  # fmt: skip


def corrected(groups: Mapping[str, tuple[Study, Answers]]) -> dict[str, dict[str, Row]]:
    """Rows of all groups, with p values after Holm's correction over all lossy rows."""
    rows = {name: rows_of(*group) for name, group in groups.items()}
    tested = [row for each in rows.values() for row in each.values() if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    return rows


def summarise(config: QualityConfig, found: Sequence[UnitResult]) -> Findings:
    """Summarise greedy and sampled answers, a table each, and draw the quality lost over the speed gained."""
    groups = {name: (plan, plan.pooled(found)) for name, plan in zip((GREEDY, "sampled"), studies(config), strict=True)}
    rows = corrected(groups)
    greedy, asked = rows[GREEDY], groups[GREEDY][1]
    wrong = [name for name, row in greedy.items() if row["lossless"] and row["equal"][0] < row["equal"][1]]
    lossless = sum(row["lossless"] for name, row in greedy.items() if name != OWN)
    lossy = {name: row for each in rows.values() for name, row in each.items() if not row["lossless"]}
    # Both the interval and the corrected test say so.
    worse = [name for name, row in lossy.items() if row["p_holm"] < ALPHA and row["gained"].high < 0]
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
            f"({greedy[OWN]['facts'].value:.2f} of them)."
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


def _table(name: str, rows: Sequence[Row]) -> FigureTable:
    scores = [one.name for one in rows[0]["metrics"]]
    texts = tuple(
        FigureColumn("", head, lambda row, which=which, at=at: row[which][at].interval)
        for which, end in (("metrics", ""), ("own", " with the target"))
        for at, head in enumerate(f"{score}{end}" for score in scores)
    )
    return figure_table(
        f"Quality of {name} answers" + (f", temperature {SAMPLED:g}" if name != GREEDY else ""),
        (*COLUMNS[:-2], *texts, *COLUMNS[-2:]),
        [(row,) for row in rows],
        "Scores are against the world's right answer, and against the target's own: "
        + "; ".join(f"{one.name}: {one.note}" for one in rows[0]["metrics"])
        + ". VQA accuracy is exact match of the short answer that is stated, where the question has one. Speed-ups of "
        "rows whose answers differ are per token.",
    )


def _figure(config: QualityConfig, rows: Mapping[str, Mapping[str, Row]]) -> Drawing:
    """Draw the facts that are right over the speed-up, a curve for each lossy method."""
    every = [(name, row) for each in rows.values() for name, row in each.items() if not row["lossless"]]
    methods: dict[str, list[tuple[float, float, float, float]]] = {
        spec.partition(":")[0]: [] for spec in (*config.compressions, *config.rules)
    }
    for name, row in every:
        methods[name.removeprefix("event, ").partition(":")[0]].append(point(row["speedup"].value, row["facts"]))
    own, span = rows[GREEDY][OWN]["facts"].value, [row["speedup"].value for _, row in every]
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
