"""`crossdraft bench compression`: targets that read fewer visual tokens, alone and with a drafter.

The corners of SpecVLM's comparison: drafting alone, compression alone, both. Compression is lossy: the share of facts
that the answers get right says what it costs, ROUGE-L and equal answers how far they are the target's own. Drafting is
lossless with respect to the target that verifies it, so its answers are compared with that target's own.

The gain stands beside it: the share of the time to the first token that a compressed target saves, including all that
compression itself takes (event frames, their encoder, an adapter).
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from crossdraft.api import Engine, Options, Request
from crossdraft.checks import whole
from crossdraft.compressions import CHECK, COMPRESSION, COMPRESSIONS, READ_WHOLE, compressed, settings_of
from crossdraft.drawing.shapes import Drawing
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import parse
from crossdraft_lab.align.checked import PrefillController, QualityBudget, Read, rouge_l
from crossdraft_lab.align.prefill import speculative
from crossdraft_lab.bench.assembly import EngineMethod, Models
from crossdraft_lab.bench.charts import ChartCurve, below_one_another, curves
from crossdraft_lab.bench.common import check_each_once
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.specs import spec_of
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.study import OWN, Answers, FigureColumn, Study, shown
from crossdraft_lab.bench.variants import Variant, fixed
from crossdraft_lab.bench.workload import Item, Workload

WITHIN = " within "  # between a spec and its budget, in the name of a row
QUALITIES = {
    "facts right": lambda row: row["facts"],
    "ROUGE-L with the target's answer": lambda row: row["rouge_l"],
    "share of the target's own answers": lambda row: {"value": row["agreed"] / row["tau"]["n"]},
}


def compression_study(
    models: Models,
    work: Workload,
    compressions: Sequence[str] | None = None,
    drafter: str | None = "eaglevlm",
    nodes: int = 60,
    budgets: Sequence[float] = (),
    check: float = 0.25,
) -> Study:
    """Study of every pair on every target, alone and with the drafter, interleaved; only thresholds adapt.

    Args:
        models: the target, and the pair's drafters.
        work: the pairs; greedy answers.
        compressions: specs; `None` = each compression that has defaults.
        drafter: drafter for every target; `None` = the targets run alone only.
        nodes: number of nodes of every round's draft.
        budgets: losses within which checks keep a speculative prefill; each gives a row for each such compression that
            names no confidence.
        check: share of such a row's requests that are checked.

    Raises:
        CrossdraftError: a spec that cannot be read, a compression or budget named twice, a budget out of range, or a
            budget within a compression's spec: the rows with and without drafter would move each other's threshold.
    """
    specs = [name for name, one in COMPRESSIONS.items() if not one.trained] if compressions is None else compressions
    if drafter is not None:
        spec_of(drafter)
    whole("The number of nodes", nodes)
    check_each_once("compression", specs)
    settings = {spec: settings_of(spec) for spec in specs}
    for spec, (_, own) in settings.items():
        if getattr(own, "budget", None) is not None:
            raise CrossdraftError(f"The compression '{spec}' names a budget; leave it out, and say --budget.")
    check_each_once("budget", [f"{budget:g}" for budget in budgets])
    for budget in budgets:
        QualityBudget(budget, check)
    always = [spec for spec, (one, own) in settings.items() if one.name == "predicted" and not own.confidence]
    if budgets and not always:
        raise CrossdraftError(
            "A budget is for a speculative prefill that names no confidence; give --compress predicted:dir=FOLDER."
        )
    rows: dict[str, tuple[Variant, str, str | None]] = {}
    for spec in (None, *specs):
        target = spec or OWN
        rows[target] = Variant(target, OWN, spec), target, None
        if drafter is not None:
            rows[f"{target} + {drafter}"] = fixed(f"{target} + {drafter}", drafter, nodes, spec), target, drafter
    for spec in always:
        for budget in budgets:
            name, own = f"{spec}{WITHIN}{budget:g}", with_budget(spec, budget, check)
            rows[name] = (
                Variant(name, OWN, own, make=lambda target, _, own=own: CheckedMethod(compressed(target, own))),
                name,
                None,
            )
    return Study(tuple(variant for variant, *_ in rows.values()), work, _columns(rows), models=models)


def _columns(rows: dict[str, tuple[Variant, str, str | None]]) -> tuple[FigureColumn, ...]:
    """Columns of the figures; `rows` give each row's target and drafter."""

    def tens(share: Interval | None) -> str:
        return "–" if share is None else share.percent()

    def own(found: Answers, name: str) -> dict[str, int] | None:
        """Number of answers equal to those of the row's target alone; `None` for a row without a drafter."""
        _, target, drafter = rows[name]
        return None if drafter is None else dict(zip(("equal", "total"), found.equal(name, target), strict=True))

    return (
        FigureColumn("target", "target", lambda _, name: rows[name][1], json=str),
        FigureColumn("drafter", "drafter", lambda _, name: rows[name][2]),
        FigureColumn("lossless", "lossless", lambda _, name: rows[name][1] == OWN),
        FigureColumn("prompt_tokens", "prompt", lambda found, name: found.mean(name, "prompt_tokens").value,
               lambda count: f"{count:.0f}", lambda count: round(count, 1)),
        FigureColumn("tau", "τ", Answers.tau),
        FigureColumn("facts", "facts right", Answers.facts),
        FigureColumn("facts_gained", "minus the target's", lambda found, name: found.facts(name, OWN)),
        FigureColumn("rouge_l", "ROUGE-L", _rouge),
        FigureColumn("agreed", "the target's answers", lambda found, name: found.equal(name)[0]),
        FigureColumn("ttft_saved", "TTFT saved", _saved, Interval.percent),
        FigureColumn("predicted", "predicted", lambda found, name: _predicted(found, name, rows[name][1]), tens),
        FigureColumn("own_answers", "its own answers", own, lambda one: shown(one and tuple(one.values()))),
    )  # fmt: skip


def _rouge(found: Answers, name: str) -> Interval:
    """Mean ROUGE-L, by tokens, of the answers with the uncompressed target's."""
    both = zip(found.results.of(name), found.results.of(OWN), strict=True)
    return ratio([rouge_l(run.tokens, one.tokens) for run, one in both], [1] * len(found.pairs))


def _saved(found: Answers, name: str) -> Interval:
    """Share of the time to the first token that is saved, against the uncompressed target alone."""
    runs, alone = found.results.of(name), found.results.of(OWN)
    return ratio([one.ttft_s - run.ttft_s for run, one in zip(runs, alone, strict=True)], [one.ttft_s for one in alone])


def _predicted(found: Answers, name: str, target: str) -> Interval | None:
    """Share of answers that come from a predicted prefill; `None` where none is predicted."""
    if target == OWN or settings_of(target.partition(WITHIN)[0])[0].name != "predicted":
        return None
    runs = found.results.of(name)
    return ratio([not any(note.startswith(READ_WHOLE) for note in run.notes) for run in runs], [1] * len(runs))


def quality_curves(rows: Sequence[dict[str, Any]]) -> Drawing:
    """Draw quality against the share of prefill that is saved; a curve for each compression, a point for each setting.

    Rows with a drafter are left out: it changes the time alone.
    """
    across = "time to the first token saved, % of the target's own"
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["drafter"] is None:
            by_name.setdefault(curve_of(row["target"]), []).append(row)

    def place(row: dict[str, Any], quality: str) -> tuple[float, float, float, float]:
        found = QUALITIES[quality](row)
        return (100 * row["ttft_saved"]["value"], found["value"], *found.get("ci95", [found["value"]] * 2))

    fields = [
        curves(
            quality,
            [ChartCurve(name, tuple(sorted(place(row, quality) for row in own))) for name, own in by_name.items()],
            across,
            quality,
        )
        for quality in QUALITIES
    ]
    return below_one_another("Quality against the prefill that is saved (LOSSY but for the target)", fields)


def curve_of(target: str) -> str:
    """Name of the curve that a row belongs to.

    >>> [curve_of(target) for target in ("target", "fastv:keep=0.5", "predicted:dir=x", "predicted:dir=x,frames=2")]
    ['target', 'fastv', 'predicted', 'predicted']
    >>> curve_of("predicted:dir=x,confidence=0.9"), curve_of("predicted:dir=x within 0.1")
    ('predicted, where the gate is confident', 'predicted, checked')
    """
    if target == OWN:
        return target
    spec, within, _ = target.partition(WITHIN)
    one, settings = settings_of(spec)
    gated = getattr(settings, "confidence", 0) > 0
    return f"{one.name}, checked" if within else f"{one.name}, where the gate is confident" if gated else one.name


def with_budget(spec: str, budget: float, check: float) -> str:
    """Spec of a speculative prefill with a quality budget and a share of checks added.

    >>> with_budget("predicted", 0.05, 0.25), with_budget("predicted:frames=1", 0.05, 0.25)
    ('predicted:budget=0.05,check=0.25', 'predicted:frames=1,budget=0.05,check=0.25')
    """
    read = parse(spec, COMPRESSION)
    return str(replace(read, settings={**read.settings, "budget": str(budget), "check": str(check)}))


class CheckedMethod(EngineMethod):
    """A speculative prefill within a quality budget; a checked request costs both answers, one after the other.

    Args:
        target: the target compressed by `predicted` with a budget.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(Engine(target, None, Options(cache_bytes=0), CostModel()))
        self.controller = cast("PrefillController", speculative(target).controller)

    def answer(self, item: Item) -> Run:
        """Return the run whose answer was given, with the time of all work done for it.

        An item without a namespace, a warm-up, is answered both ways, and nothing is learned from it.
        """
        if item.request.namespace is None:
            super().answer(_read_as(item, Read.PREDICTED))
            return super().answer(_read_as(item, Read.WHOLE))
        start, check = time.perf_counter(), _ChosenChecks()
        given = super().answer(_read_as(item, check))
        for request in check.prepared:
            lossy = super().answer(_read_as(replace(item, request=request), Read.PREDICTED))
            self.controller.learn(1 - rouge_l(lossy.tokens, given.tokens))
        return replace(given, total_s=time.perf_counter() - start)


class _ChosenChecks:
    """Keeps the request that is chosen for a check."""

    def __init__(self) -> None:
        self.prepared: list[Request] = []

    def start(self, prepared: Request) -> None:
        self.prepared.append(prepared)


def _read_as(item: Item, prefill: object) -> Item:
    return replace(item, request=replace(item.request, extras={CHECK: prefill}))
