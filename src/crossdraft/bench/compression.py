"""`crossdraft bench compression`: targets that read fewer visual tokens, alone and with a drafter.

The corners of SpecVLM's comparison: drafting alone, compression alone, both. Compression is lossy: the share of facts
that the answers get right says what it costs. Drafting is lossless with respect to the target that verifies it, so its
answers are compared with that target's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossdraft.api import Engine, Options
from crossdraft.bench.assembly import EngineMethod, Models, close_all
from crossdraft.bench.common import check_each_once, table
from crossdraft.bench.measure import measure
from crossdraft.bench.rules import facts_figures, right_facts
from crossdraft.bench.specs import spec_of
from crossdraft.bench.statistics import Interval
from crossdraft.bench.workload import Workload, items
from crossdraft.checks import whole
from crossdraft.compression import COMPRESSIONS, compressed, settings_of
from crossdraft.engine.policy import CostModel
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target

if TYPE_CHECKING:
    from rich.table import Table

WHOLE = "target"


@dataclass(frozen=True)
class CompressionBench:
    """What to measure.

    Args:
        models: the target, and the pair's drafters.
        work: the pairs; greedy answers.
        compressions: specs; `None` = each compression as it is by default.
        drafter: what drafts for every target.
        nodes: of every round's draft.

    Raises:
        CrossdraftError: a spec that cannot be read, or a compression named twice.
    """

    models: Models
    work: Workload
    compressions: Sequence[str] | None = None
    drafter: str = "eaglevlm"
    nodes: int = 60

    def __post_init__(self) -> None:
        spec_of(self.drafter)
        whole("The number of nodes", self.nodes)
        check_each_once("compression", self.specs)
        for spec in self.specs:
            settings_of(spec)

    @property
    def specs(self) -> tuple[str, ...]:
        """Of the compressions."""
        return tuple(COMPRESSIONS if self.compressions is None else self.compressions)

    @property
    def runs(self) -> int:
        """How many answers it asks for; what a progress bar counts to."""
        return 2 * (1 + len(self.specs)) * self.work.pairs


@dataclass(frozen=True)
class CompressionResult:
    """One target, alone or drafted for.

    Args:
        target: `target`, or how it was compressed.
        drafter: `None` = alone.
        prompt_tokens: that enter its language model, of a prompt on average.
        tau: tokens per verify pass.
        facts, facts_gained: share of facts that are right, and that minus the uncompressed target's.
        own: answers that are this target's own, of `total`.
    """

    target: str
    drafter: str | None
    prompt_tokens: float
    tau: Interval
    facts: Interval
    facts_gained: Interval
    own: int
    total: int

    @property
    def lossless(self) -> bool:
        """Whether the answers are the uncompressed target's, by construction."""
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
            "own_answers": {"equal": self.own, "total": self.total},
        }


def compare_compressions(
    plan: CompressionBench, target: Target, tick: Callable[[str], None] | None = None
) -> list[CompressionResult]:
    """Answer every pair on every target, alone and drafted for, interleaved; nothing adapts."""
    asked = list(items(plan.work))
    targets = {WHOLE: target, **{spec: compressed(target, spec) for spec in plan.specs}}
    pairs = [(name, drafter) for name in targets for drafter in (None, plan.drafter)]
    made: dict[str, EngineMethod] = {}
    try:
        for name, drafter in pairs:
            made[_label(name, drafter)] = _method(plan, targets[name], drafter)
        results = measure(made, asked, repeats=1, tick=tick)
    finally:
        close_all(made.values())
    facts = [len(pair.facts) for pair in asked]

    def right(label: str) -> list[int]:
        answers = zip(asked, results.of(label), strict=True)
        return [right_facts(target, pair, run.tokens) for pair, run in answers]

    alone = right(_label(WHOLE, None))
    found = []
    for name, drafter in pairs:
        label = _label(name, drafter)
        runs, own = results.of(label), results.of(_label(name, None))
        found.append(
            CompressionResult(
                name,
                drafter,
                sum(len(targets[name].prepare(pair.request)) for pair in asked) / len(asked),
                results.tau(label),
                *facts_figures(right(label), alone, facts),
                sum(run.tokens == theirs.tokens for run, theirs in zip(runs, own, strict=True)),
                len(runs),
            )
        )
    return found


def results_table(found: Sequence[CompressionResult]) -> "Table":
    """The figures for people."""
    heads = ("lossless", "prompt", "τ", "facts right", "minus the target's", "its own answers")
    shown = table(None, "target", heads)
    for row in found:
        figures = f"{row.prompt_tokens:.0f}", str(row.tau), str(row.facts), str(row.facts_gained)
        lossless = "yes" if row.lossless else "NO"
        shown.add_row(_label(row.target, row.drafter), lossless, *figures, f"{row.own}/{row.total}")
    return shown


def _label(target: str, drafter: str | None) -> str:
    return target if drafter is None else f"{target} + {drafter}"


def _method(plan: CompressionBench, target: Target, drafter: str | None) -> EngineMethod:
    """Our engine on that target; without a drafter, the target alone."""
    options = Options(adaptive=False, nodes=plan.nodes, hidden_nodes=plan.nodes, cache_bytes=0)
    runner = None if drafter is None else DraftRunner(plan.models.build(spec_of(drafter), target), "before")
    return EngineMethod(Engine(target, runner, options, CostModel()))
