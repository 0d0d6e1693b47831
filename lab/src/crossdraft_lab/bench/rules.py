"""`crossdraft bench rules`: what acceptance rules keep under the same rounds, and what lossy ones do to the answers.

Quality is the share of facts that an answer about a scene gets right (`scenes.score`), by itself and against the target
alone. Each rule gets a drafter made anew, so that what one learns under a rule helps no other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crossdraft.api import Engine, Options
from crossdraft.checks import whole
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.rules import RULES, rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft_lab.bench.assembly import EngineMethod, Models, close_all
from crossdraft_lab.bench.baselines import blank_window
from crossdraft_lab.bench.common import check_each_once, table
from crossdraft_lab.bench.measure import measure
from crossdraft_lab.bench.specs import is_blind, spec_of
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.workload import Item, Workload, items
from crossdraft_lab.rules import classifier
from crossdraft_lab.scenes import score

if TYPE_CHECKING:
    from rich.table import Table

ALONE = "target"
SAMPLED = tuple(name for name, rule in RULES.items() if not rule.greedy)


@dataclass(frozen=True)
class RulesBench:
    """Settings of a measurement of acceptance rules.

    Args:
        models: the pair.
        work: the pairs, and the temperature.
        rules: specs; `None` = every rule for sampled answers that may judge the drafter; the shipped judge is for the
            reference target alone.
        drafter: what drafts; rules for chains need one that drafts them.
        nodes: of every round's draft, the first included.

    Raises:
        CrossdraftError: a spec that cannot be read, a rule that does not fit the temperature, or one named twice.
    """

    models: Models
    work: Workload
    rules: Sequence[str] | None = None
    drafter: str = "event"
    nodes: int = 8

    def __post_init__(self) -> None:
        spec_of(self.drafter)
        whole("The number of nodes", self.nodes)
        check_each_once("rule", self.specs)
        for spec in self.specs:
            rule_for(spec, Sampling(temperature=self.work.temperature))

    @property
    def specs(self) -> tuple[str, ...]:
        """The rules' specs."""
        if self.rules is not None:
            return tuple(self.rules)
        drafting = spec_of(self.drafter).name
        fit = (name for name in SAMPLED if RULES[name].drafter in (None, drafting))
        return tuple(name for name in fit if name != classifier.NAME or self.models.target == "reference")

    @property
    def runs(self) -> int:
        """Number of answers it asks for: the steps of the progress bar."""
        return (1 + len(self.specs)) * self.work.pairs


@dataclass(frozen=True)
class RuleResult:
    """One rule's figures, or those of the target alone.

    Args:
        rule: its spec, or `target`.
        lossless: whether the answers are the target's own, by the rule.
        tau: tokens per verify pass.
        facts: share of facts that are right.
        facts_gained: the same, minus that of the target alone.
        tokens: of an answer, on average.
    """

    rule: str
    lossless: bool
    tau: Interval
    facts: Interval
    facts_gained: Interval
    tokens: float

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "rule": self.rule,
            "lossless": self.lossless,
            "tau": self.tau.to_json(),
            "facts": self.facts.to_json(),
            "facts_gained": self.facts_gained.to_json(),
            "tokens": round(self.tokens, 2),
        }


def compare_rules(plan: RulesBench, target: Target, tick: Callable[[str], None] | None = None) -> list[RuleResult]:
    """Answer every pair by every rule, interleaved; nothing adapts, so that τ depends on rule and drafter alone."""
    asked = list(items(plan.work))
    made = {ALONE: _method(plan, target, None), **{spec: _method(plan, target, spec) for spec in plan.specs}}
    try:
        results = measure(made, asked, repeats=1, tick=tick)
    finally:
        close_all(made.values())
    right = {name: [right_facts(target, pair, run.tokens) for pair, run in zip(asked, results.of(name), strict=True)]
             for name in made}  # fmt: skip
    rows = [
        RuleResult(
            name,
            name == ALONE or all(run.lossy is None for run in results.of(name)),
            results.tau(name),
            *facts_figures(right[name], right[ALONE], [len(pair.facts) for pair in asked]),
            sum(results.tokens(name)) / len(asked),
        )
        for name in made
    ]
    return [replace(row, rule=row.rule if row.rule == ALONE else _spec(row.rule, plan)) for row in rows]


def right_facts(target: Target, pair: Item, tokens: Sequence[int]) -> int:
    """Count the facts that an answer gets right."""
    return sum(score(pair.facts, target.decode(tokens)).values())


def facts_figures(right: Sequence[int], alone: Sequence[int], facts: Sequence[int]) -> tuple[Interval, Interval]:
    """The share of right facts over pairs, and the same minus that of the target alone on the same pairs.

    >>> [str(found) for found in facts_figures([1, 1], [2, 2], [2, 2])]
    ['0.50 [0.50, 0.50; n=2]', '-0.50 [-0.50, -0.50; n=2]']
    """
    return ratio(right, facts), ratio([own - theirs for own, theirs in zip(right, alone, strict=True)], facts)


def results_table(found: Sequence[RuleResult]) -> "Table":
    """The figures for people."""
    shown = table(None, "rule", ("lossless", "τ", "facts right", "minus the target's", "tokens"))
    for row in found:
        figures = str(row.tau), str(row.facts), str(row.facts_gained), f"{row.tokens:.1f}"
        shown.add_row(row.rule, "yes" if row.lossless else "NO", *figures)
    return shown


def _spec(rule: str, plan: RulesBench) -> str:
    """A rule with all its settings."""
    return rule_for(rule, Sampling(temperature=plan.work.temperature)).spec


def _method(plan: RulesBench, target: Target, rule: str | None) -> EngineMethod:
    """Our engine with that rule; the target alone without."""
    options = Options(adaptive=False, nodes=plan.nodes, hidden_nodes=plan.nodes, cache_bytes=0, rule=rule)
    spec = spec_of(plan.drafter)
    runner = None if rule is None else DraftRunner(plan.models.build(spec, target), "before")
    engine = Engine(target, runner, options, CostModel())
    return EngineMethod(engine, blank_window(plan.models.blind), blind=rule is not None and is_blind(spec))
