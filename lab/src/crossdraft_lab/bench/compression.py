"""`crossdraft bench compression`: targets that read fewer visual tokens, alone and with a drafter.

The corners of SpecVLM's comparison: drafting alone, compression alone, both. Compression is lossy: the share of facts
that the answers get right says what it costs, ROUGE-L and equal answers how far they are the target's own. Drafting is
lossless with respect to the target that verifies it, so its answers are compared with that target's own.

What is gained stands beside it: the share of the time to the first token that a compressed target saves, all that it
does for that included (event frames, their encoder, an adapter).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from crossdraft.api import Engine, Options, Request
from crossdraft.checks import whole
from crossdraft.compressions import COMPRESSION, COMPRESSIONS, READ_WHOLE, compressed, settings_of
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import parse
from crossdraft_lab.align.checked import PrefillController, QualityBudget, Read, rouge_l
from crossdraft_lab.align.prefill import speculative
from crossdraft_lab.bench.assembly import EngineMethod, Models, close_all
from crossdraft_lab.bench.common import check_each_once, table
from crossdraft_lab.bench.measure import BenchMethod, Run, measure
from crossdraft_lab.bench.rules import facts_figures, right_facts
from crossdraft_lab.bench.specs import spec_of
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.workload import Item, Workload, items

if TYPE_CHECKING:
    from rich.table import Table

WHOLE = "target"
WITHIN = " within "  # between a spec and its budget, in the name of a row


@dataclass(frozen=True)
class CompressionBench:
    """Settings of a measurement of compressions.

    Args:
        models: the target, and the pair's drafters.
        work: the pairs; greedy answers.
        compressions: specs; `None` = each compression that has defaults.
        drafter: what drafts for every target; `None` = nothing does.
        nodes: of every round's draft.
        budgets: losses within which checks keep a speculative prefill; a row each for every such compression that names
            no confidence.
        check: share of its requests that are checked.

    Raises:
        CrossdraftError: a spec that cannot be read, a compression or budget named twice, or a budget that is none, or
            is named by a compression: of its target alone and drafted for, each would move the other's threshold.
    """

    models: Models
    work: Workload
    compressions: Sequence[str] | None = None
    drafter: str | None = "eaglevlm"
    nodes: int = 60
    budgets: Sequence[float] = ()
    check: float = 0.25

    def __post_init__(self) -> None:
        if self.drafter is not None:
            spec_of(self.drafter)
        whole("The number of nodes", self.nodes)
        check_each_once("compression", self.specs)
        for spec in self.specs:
            if getattr(settings_of(spec)[1], "budget", None) is not None:
                raise CrossdraftError(f"The compression '{spec}' names a budget; leave it out, and say --budget.")
        check_each_once("budget", [f"{budget:g}" for budget in self.budgets])
        for budget in self.budgets:
            QualityBudget(budget, self.check)
        if self.budgets and not self.checked:
            raise CrossdraftError(
                "A budget is for a speculative prefill that names no confidence; give --compress predicted:dir=FOLDER."
            )

    @property
    def specs(self) -> tuple[str, ...]:
        """Specs of the compressions."""
        if self.compressions is not None:
            return tuple(self.compressions)
        return tuple(name for name, one in COMPRESSIONS.items() if not one.trained)

    @property
    def checked(self) -> tuple[tuple[str, float], ...]:
        """Compressions and budgets of the rows with checks."""
        found = [(spec, *settings_of(spec)) for spec in self.specs]
        always = [spec for spec, one, settings in found if one.name == "predicted" and not settings.confidence]
        return tuple((spec, budget) for spec in always for budget in self.budgets)

    @property
    def runs(self) -> int:
        """Number of answers it asks for: the steps of the progress bar."""
        each = 1 if self.drafter is None else 2
        return (each * (1 + len(self.specs)) + len(self.checked)) * (1 + self.work.pairs)


@dataclass(frozen=True)
class CompressionResult:
    """One target, alone or drafted for.

    Args:
        target: `target`, or how it was compressed.
        drafter: `None` = alone.
        prompt_tokens: that enter its language model, of a prompt on average.
        tau: tokens per verify pass.
        facts, facts_gained: share of facts that are right, and that minus the uncompressed target's.
        rouge_l: of the answers with the uncompressed target's, by tokens; mean.
        agreed: answers that are the uncompressed target's.
        saved: share of the time to the first token, against the uncompressed target alone.
        predicted: share of the answers that come of a predicted prefill; `None` where none is predicted.
        own: answers that are this target's own, of `total`; `None` of the target alone, whose answers these are.
    """

    target: str
    drafter: str | None
    prompt_tokens: float
    tau: Interval
    facts: Interval
    facts_gained: Interval
    rouge_l: Interval
    agreed: int
    saved: Interval
    predicted: Interval | None
    own: int | None
    total: int

    @property
    def lossless(self) -> bool:
        """True if the answers are the uncompressed target's, by construction."""
        return self.target == WHOLE

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "target": self.target,
            "drafter": self.drafter,
            "lossless": self.lossless,
            "prompt_tokens": round(self.prompt_tokens, 1),
            "tau": self.tau.to_json(),
            "facts": self.facts.to_json(),
            "facts_gained": self.facts_gained.to_json(),
            "rouge_l": self.rouge_l.to_json(),
            "agreed": self.agreed,
            "ttft_saved": self.saved.to_json(),
            "predicted": None if self.predicted is None else self.predicted.to_json(),
            "own_answers": None if self.own is None else {"equal": self.own, "total": self.total},
        }


def compare_compressions(
    plan: CompressionBench, target: Target, tick: Callable[[str], None] | None = None
) -> list[CompressionResult]:
    """Answer every pair on every target, alone and drafted for, interleaved; nothing adapts but thresholds."""
    asked = list(items(plan.work))
    targets = {WHOLE: target, **{spec: compressed(target, spec) for spec in plan.specs}}
    drafters = (None,) if plan.drafter is None else (None, plan.drafter)
    pairs = [(name, drafter) for name in targets for drafter in drafters]
    made: dict[str, BenchMethod] = {}
    try:
        for name, drafter in pairs:
            made[_label(name, drafter)] = _method(plan, targets[name], drafter)
        for spec, budget in plan.checked:
            pairs.append((f"{spec}{WITHIN}{budget:g}", None))
            made[pairs[-1][0]] = CheckedMethod(compressed(target, with_budget(spec, budget, plan.check)), plan)
        results = measure(made, asked, repeats=1, warm_ups=[_unlearned(pair) for pair in asked[:1]], tick=tick)
    finally:
        close_all(made.values())
    alone, facts = results.of(WHOLE), [len(pair.facts) for pair in asked]

    def right(runs: Sequence[Run]) -> list[int]:
        return [right_facts(target, pair, run.tokens) for pair, run in zip(asked, runs, strict=True)]

    found = []
    for name, drafter in pairs:
        runs, own = results.of(_label(name, drafter)), results.of(name)
        both = list(zip(runs, alone, strict=True))
        found.append(
            CompressionResult(
                name,
                drafter,
                sum(run.prompt_tokens for run in runs) / len(runs),
                results.tau(_label(name, drafter)),
                *facts_figures(right(runs), right(alone), facts),
                ratio([rouge_l(run.tokens, one.tokens) for run, one in both], [1] * len(runs)),
                sum(run.tokens == one.tokens for run, one in both),
                ratio([one.ttft_s - run.ttft_s for run, one in both], [one.ttft_s for one in alone]),
                _predicted(name, runs),
                None if drafter is None else sum(one.tokens == two.tokens for one, two in zip(runs, own, strict=True)),
                len(runs),
            )
        )
    return found


def _predicted(name: str, runs: Sequence[Run]) -> Interval | None:
    """The share of answers that come of a predicted prefill."""
    if name == WHOLE or settings_of(name.partition(WITHIN)[0])[0].name != "predicted":
        return None
    return ratio([not any(note.startswith(READ_WHOLE) for note in run.notes) for run in runs], [1] * len(runs))


def _unlearned(pair: Item) -> Item:
    """A pair of whose answer nothing is to be learned."""
    return replace(pair, request=replace(pair.request, namespace=None))


def with_budget(spec: str, budget: float, check: float) -> str:
    """The spec of a speculative prefill, within a budget.

    >>> with_budget("predicted", 0.05, 0.25), with_budget("predicted:frames=1", 0.05, 0.25)
    ('predicted:budget=0.05,check=0.25', 'predicted:frames=1,budget=0.05,check=0.25')
    """
    read = parse(spec, COMPRESSION)
    return str(replace(read, settings={**read.settings, "budget": str(budget), "check": str(check)}))


class CheckedMethod(EngineMethod):
    """A speculative prefill within a quality budget; a checked request costs both answers, one after the other.

    Args:
        target: the compressed one, a `SpeculativePrefill` with a budget.
        plan: how it answers.
    """

    def __init__(self, target: Target, plan: CompressionBench) -> None:
        super().__init__(_engine(plan, target, None))
        self.controller = cast("PrefillController", speculative(target).controller)

    def answer(self, item: Item) -> Run:
        """The run that was given, with the time of all that was done for it.

        Of an item without a namespace, a warm-up, both ways are gone, and nothing is learned.
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
    return replace(item, request=replace(item.request, prefill=prefill))


def results_table(found: Sequence[CompressionResult]) -> "Table":
    """The figures for people."""
    from rich.markup import escape

    heads = (
        "lossless", "prompt", "TTFT saved", "predicted", "τ", "facts right", "minus the target's", "ROUGE-L",
        "the target's answers", "its own answers",
    )  # fmt: skip
    shown = table(None, "target", heads)
    for row in found:
        figures = [f"{row.prompt_tokens:.0f}", row.saved.percent()]
        figures += ["–" if row.predicted is None else row.predicted.percent(), str(row.tau)]
        figures += [str(row.facts), str(row.facts_gained), str(row.rouge_l)]
        equal = f"{row.agreed}/{row.total}", "–" if row.own is None else f"{row.own}/{row.total}"
        shown.add_row(escape(_label(row.target, row.drafter)), "yes" if row.lossless else "NO", *figures, *equal)
    return shown


def _label(target: str, drafter: str | None) -> str:
    return target if drafter is None else f"{target} + {drafter}"


def _method(plan: CompressionBench, target: Target, drafter: str | None) -> EngineMethod:
    """Our engine on that target; without a drafter, the target alone."""
    return EngineMethod(_engine(plan, target, drafter))


def _engine(plan: CompressionBench, target: Target, drafter: str | None) -> Engine:
    options = Options(adaptive=False, nodes=plan.nodes, hidden_nodes=plan.nodes, cache_bytes=0)
    runner = None if drafter is None else DraftRunner(plan.models.build(spec_of(drafter), target), "before")
    return Engine(target, runner, options, CostModel())
