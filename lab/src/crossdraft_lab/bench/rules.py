"""`crossdraft bench rules`: tokens that acceptance rules keep in equal rounds, and the effect of lossy ones on answers.

Quality is the share of facts that an answer about a scene gets right (`scenes.score`), by itself and against the target
alone. Each rule gets a new drafter, so that what a drafter learns under one rule does not help another.
"""

from collections.abc import Sequence

from crossdraft.checks import whole
from crossdraft.engine.rules import RULES, rule_for
from crossdraft.engine.sampling import Sampling
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.common import check_each_once
from crossdraft_lab.bench.specs import spec_of
from crossdraft_lab.bench.study import OWN, Answers, FigureColumn, Study, name_column
from crossdraft_lab.bench.variants import Variant, fixed
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.rules import classifier

COLUMNS = (
    name_column("rule", "rule"),
    FigureColumn("lossless", "lossless", lambda found, name: all(run.lossy is None for run in found.results.of(name))),
    FigureColumn("tau", "τ", Answers.tau),
    FigureColumn("facts", "facts right", Answers.facts),
    FigureColumn("facts_gained", "minus the target's", lambda found, name: found.facts(name, OWN)),
    FigureColumn("tokens", "tokens", lambda found, name: found.mean_of(name, lambda run: len(run.tokens)).value,
           lambda mean: f"{mean:.1f}", lambda mean: round(mean, 2)),
)  # fmt: skip


def rules_study(
    models: Models, work: Workload, rules: Sequence[str] | None = None, drafter: str = "event", nodes: int = 8
) -> Study:
    """Study of every pair under every rule, interleaved; nothing adapts, so that τ depends on rule and drafter alone.

    Args:
        models: the pair.
        work: the pairs, and the temperature.
        rules: specs; `None` = every rule for sampled answers that can be used with the drafter; the shipped judge only
            for the reference target.
        drafter: spec of the drafter; rules for chains need one that drafts chains.
        nodes: number of nodes of every round's draft, the first included.

    Raises:
        CrossdraftError: a spec that cannot be read, a rule that does not fit the temperature, or one named twice.
    """
    if rules is None:
        drafting = spec_of(drafter).name
        fit = (name for name, rule in RULES.items() if not rule.greedy and rule.drafter in (None, drafting))
        rules = [name for name in fit if name != classifier.NAME or models.target == "reference"]
    spec_of(drafter)
    whole("The number of nodes", nodes)
    check_each_once("rule", rules)
    named = {rule_for(rule, Sampling(temperature=work.temperature)).spec: rule for rule in rules}
    variants = (Variant(OWN), *(fixed(name, drafter, nodes, rule=rule) for name, rule in named.items()))
    return Study(variants, work, COLUMNS, warm_ups=0, models=models)
