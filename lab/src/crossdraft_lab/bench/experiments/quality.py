"""Experiment 5: what answers are worth: lossless rows must be equal to the target's, lossy ones lie on a curve."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from crossdraft.drawing.charts import ChartCurve, curves
from crossdraft.drawing.shapes import Drawing
from crossdraft_lab.bench.experiments.blocks import ALL, OWN, BlockPlan, Pooled, faults_of, measure_blocks, pooled, sure
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft_lab.bench.experiments.variants import Variant
from crossdraft_lab.bench.figure import Figure
from crossdraft_lab.bench.quality import ScoredAnswer, accuracies, text_scores
from crossdraft_lab.bench.rules import facts_figures
from crossdraft_lab.bench.significance import ALPHA, holm, least_scenes, paired_difference
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.scenes import score, stated

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

    @property
    def plans(self) -> Mapping[str, BlockPlan]:
        """Greedy answers, and sampled ones for the rules; compressed targets have all cores."""
        alone = Variant(OWN), Variant(ALL)
        greedy = (*alone, *map(Variant, self.drafters), *(Variant(spec, ALL, spec) for spec in self.compressions))
        sampled = (*alone, Variant("event, speculative", "event"), *map(_rule, self.rules))
        found = {GREEDY: (greedy, 0.0), "sampled": (sampled, SAMPLED)}
        return {
            name: BlockPlan(
                variants,
                Workload(self.pairs, max_new_tokens=self.max_new_tokens, temperature=warm),
                self.block,
                warm_ups=self.warm_ups,
                prefix=f"{name}, pairs",
            )
            for name, (variants, warm) in found.items()
        }


def units(config: QualityConfig) -> list[str]:
    """Blocks of both."""
    return [key for plan in config.plans.values() for key in plan.keys]


def measure(config: QualityConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """One after the other."""
    for plan in config.plans.values():
        yield from measure_blocks(plan, [key for key in plan.keys if key in keys], setting)


@dataclass(frozen=True, slots=True)
class QualityRow:
    """One method.

    Args:
        lossless: by what it is, whatever came out.
        equal, total: answers that are the target's own.
        facts, gained: share of facts that are right, and that minus the target's own.
        p, adjusted_p: of Wilcoxon's test on what was gained, by scene; the second after Holm's correction over all
            lossy rows. `None` for lossless rows.
        short: accuracies of the short answers that are stated, where the question has one; see `SHORT`.
        metrics: BLEU-4, ROUGE-L and CIDEr against the right answer.
        own: the same against the target's own answer.
        speedup: per token where answers differ.
        prompt: tokens that enter the language model.
    """

    lossless: bool
    equal: int
    total: int
    facts: Interval
    gained: Interval
    metrics: Sequence[Figure]
    own: Sequence[Figure]
    speedup: Interval
    prompt: float
    short: Sequence[Figure] = ()
    p: float | None = None
    adjusted_p: float | None = None

    @property
    def worse(self) -> bool:
        """True if fewer facts are right: both the interval and the corrected test say so."""
        return self.adjusted_p is not None and self.adjusted_p < ALPHA and self.gained.high < 0

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "lossless": self.lossless,
            "equal": [self.equal, self.total],
            "facts": self.facts.to_json(),
            "facts_gained": self.gained.to_json(),
            "p_wilcoxon": self.p,
            "p_holm": self.adjusted_p,
            "short_answers": [one.to_json() for one in self.short],
            "metrics": [one.to_json() for one in self.metrics],
            "metrics_with_target": [one.to_json() for one in self.own],
            "speedup": self.speedup.to_json(),
            "prompt_tokens": round(self.prompt, 1),
        }


def row_of(found: Pooled, name: str, *, lossless: bool, sampled: bool) -> QualityRow:
    """The figures of a method."""
    facts = [len(pair["facts"]) for pair in found.pairs]
    right = {one: _right(found, one) for one in (name, OWN)}
    scenes = [pair["scene"] for pair in found.pairs]
    p = None if lossless else paired_difference(name, right[name], right[OWN], scenes)[1]
    return QualityRow(
        lossless,
        *found.equal(name),
        *facts_figures(right[name], right[OWN], facts),
        _scores(found, name, [pair["reference"] for pair in found.pairs]),
        _scores(found, name, found.answers[OWN]),
        found.speedup(name, per_token=sampled or not lossless),
        found.mean(name, "prompt_tokens").value,
        _short(found, name),
        p,
    )


def _right(found: Pooled, name: str) -> list[int]:
    """Facts that each answer gets right."""
    return [
        sum(score(pair["facts"], text).values()) for pair, text in zip(found.pairs, found.answers[name], strict=True)
    ]


def _short(found: Pooled, name: str) -> list[Figure]:
    """Accuracies of the values that answers state of what was asked; none where no question has a short answer."""
    asked = [
        ScoredAnswer(pair["scene"], stated(slot, text), (pair["facts"][slot],), pair["kind"])
        for pair, text in zip(found.pairs, found.answers[name], strict=True)
        if (slot := SHORT.get(pair["kind"], "")) in pair["facts"]
    ]
    return accuracies(asked) if asked else []


def _scores(found: Pooled, name: str, references: Sequence[str]) -> list[Figure]:
    """Score a method's answers against one other text each."""
    each = zip(found.pairs, found.answers[name], references, strict=True)
    return text_scores([ScoredAnswer(pair["scene"], text, (reference,)) for pair, text, reference in each])


def summarise(config: QualityConfig, found: Sequence[UnitResult]) -> Findings:
    """A table for greedy answers, one for sampled ones; the curve of what is lost for what is gained."""
    groups = {
        name: pooled([unit for unit in found if unit.key in set(plan.keys)]) for name, plan in config.plans.items()
    }
    rows = corrected(
        {
            name: {
                variant.name: row_of(
                    groups[name], variant.name, lossless=variant.lossless, sampled=plan.work.temperature > 0
                )
                for variant in plan.variants
            }
            for name, plan in config.plans.items()
        }
    )
    greedy = rows[GREEDY]
    wrong = [name for name, row in greedy.items() if row.lossless and row.equal < row.total]
    lossless = sum(row.lossless for name, row in greedy.items() if name != OWN)
    lossy = {name: row for each in rows.values() for name, row in each.items() if not row.lossless}
    worse = [name for name, row in lossy.items() if row.worse]
    scenes, least = len({pair["scene"] for pair in groups[GREEDY].pairs}), least_scenes(len(lossy))
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
            f"{sure(groups[GREEDY], 1)} Facts are judged by rules that know the scene. Fewer are right where the "
            "interval says so and Wilcoxon's signed-rank test over scenes, with Holm's correction over all lossy rows, "
            f"has p < {ALPHA:g}.{few}"
        ),
        tables=tuple(_table(name, each) for name, each in rows.items()),
        figure=_figure(config, rows),
        figures={name: {one: row.to_json() for one, row in each.items()} for name, each in rows.items()},
        negative=(f"Fewer facts right than the target's own answers: {'; '.join(worse)}.",) if worse else (),
        faults=faults_of((plan, groups[name]) for name, plan in config.plans.items()),
    )


def corrected(rows: Mapping[str, Mapping[str, QualityRow]]) -> dict[str, dict[str, QualityRow]]:
    """The same with p values after Holm's correction over all lossy rows."""
    tested = {(name, one): row.p for name, each in rows.items() for one, row in each.items() if row.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {
        name: {one: replace(row, adjusted_p=adjusted.get((name, one))) for one, row in each.items()}
        for name, each in rows.items()
    }


def _table(name: str, rows: Mapping[str, QualityRow]) -> FigureTable:
    scores = [one.name for one in next(iter(rows.values())).metrics]
    heads = ("", "lossless", "the target's answers", "facts right", "minus the target's", "p, Holm", "VQA accuracy")
    heads = (*heads, *scores, *(f"{score} with the target" for score in scores), "prompt tokens", "speed-up")
    sampled = name != GREEDY
    return FigureTable(
        f"Quality of {name} answers" + (f", temperature {SAMPLED:g}" if sampled else ""),
        heads,
        tuple(
            (one, "yes" if row.lossless else "NO", "–" if sampled else f"{row.equal}/{row.total}", str(row.facts),
             str(row.gained), "–" if row.adjusted_p is None else f"{row.adjusted_p:.2g}",
             str(row.short[0].interval) if row.short else "–",
             *(str(one.interval) for one in (*row.metrics, *row.own)), f"{row.prompt:.0f}", str(row.speedup))
            for one, row in rows.items()
        ),
        "Scores are against the world's right answer, and against the target's own: "
        + "; ".join(f"{one.name}: {one.note}" for one in next(iter(rows.values())).metrics)
        + ". VQA accuracy is exact match of the short answer that is stated, where the question has one. Speed-ups of "
        "rows whose answers differ are per token.",
    )  # fmt: skip


def _figure(config: QualityConfig, rows: Mapping[str, Mapping[str, QualityRow]]) -> Drawing:
    """Facts right over the speed-up, a curve for each lossy method."""
    methods = dict.fromkeys(spec.partition(":")[0] for spec in (*config.compressions, *config.rules))
    every = [(name, row) for each in rows.values() for name, row in each.items() if not row.lossless]
    found = [
        ChartCurve(
            method,
            tuple(
                sorted(
                    (row.speedup.value, row.facts.value, row.facts.low, row.facts.high)
                    for name, row in every
                    if name.removeprefix("event, ").partition(":")[0] == method
                )
            ),
        )
        for method in methods
    ]
    own = rows[GREEDY][OWN].facts
    span = [row.speedup.value for _, row in every]
    level = tuple((x, own.value, own.value, own.value) for x in (min(span), max(span)))
    return curves(
        "Facts right over the speed-up, lossy methods",
        [*found, ChartCurve("the target's own answers", level, dashed=True)],
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
    units,
    measure,
    summarise,
)  # fmt: skip
