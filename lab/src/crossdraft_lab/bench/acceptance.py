"""`crossdraft bench acceptance`: τ of drafters under the same rounds, whatever they cost.

Does seeing help: the event drafter against its blind twin. Is the whole more than its parts: a union against them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from crossdraft.api import Engine, Options
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import EngineMethod, Models, close_all
from crossdraft_lab.bench.baselines import blank_window
from crossdraft_lab.bench.measure import Run, measure
from crossdraft_lab.bench.specs import is_blind, spec_of
from crossdraft_lab.bench.statistics import AcceptanceFigures, Interval, acceptance_figures, of_kind, tau_ratio
from crossdraft_lab.bench.workload import Item

NODES = 8
DRAFTERS = ("event", "blind")


@dataclass(frozen=True, slots=True)
class AcceptanceComparison:
    """All drafters, and the ratio of the first one's τ to the best of the others', over all and by kind."""

    nodes: int
    drafters: Mapping[str, AcceptanceFigures]
    best: str
    ratio: Interval
    ratio_by_kind: Mapping[str, Interval]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "nodes": self.nodes,
            "drafters": {name: found.to_json() for name, found in self.drafters.items()},
            "best_other": self.best,
            "ratio": self.ratio.to_json(),
            "ratio_by_kind": {kind: ratio.to_json() for kind, ratio in self.ratio_by_kind.items()},
        }


def check_drafters(specs: Sequence[str]) -> None:
    """Refuse what makes no comparison; loads nothing.

    Raises:
        CrossdraftError: fewer than two drafters, one that stands there twice, or a spec that cannot be read.
    """
    if len(specs) < 2 or len(set(specs)) != len(specs):
        raise CrossdraftError(
            f"A comparison needs two different drafters or more, not {', '.join(specs) or 'none'}; the first one is "
            "compared with the best of the others."
        )
    for spec in specs:
        spec_of(spec)


def compare_acceptance(
    target: Target,
    models: Models,
    items: Sequence[Item],
    nodes: int = NODES,
    specs: Sequence[str] = DRAFTERS,
    tick: Callable[[str], None] | None = None,
) -> AcceptanceComparison:
    """Answer every pair with every drafter, each offering a tree of at most `nodes` in every round, the first included.

    Nothing adapts, and the ride-along's draft is as long as any other, so that τ depends on the drafter alone.

    Raises:
        CrossdraftError: as `check_drafters`.
    """
    check_drafters(specs)
    options = Options(adaptive=False, nodes=nodes, hidden_nodes=nodes, cache_bytes=0)
    made: dict[str, EngineMethod] = {}
    try:
        for spec in specs:
            runner = DraftRunner(models.build(spec_of(spec), target), "before")
            engine = Engine(target, runner, options, CostModel())
            made[spec] = EngineMethod(engine, blank_window(models.blind), blind=is_blind(spec_of(spec)))
        results = measure(made, items, repeats=1, tick=tick)
    finally:
        close_all(made.values())
    return compare({spec: results.of(spec) for spec in specs}, [item.kind for item in items], nodes)


def compare(runs: Mapping[str, Sequence[Run]], kinds: Sequence[str], nodes: int) -> AcceptanceComparison:
    """The figures of drafters' runs over the same pairs."""
    counts = {name: [(len(run.tokens), run.rounds) for run in own] for name, own in runs.items()}
    drafters = {
        name: acceptance_figures(counts[name], [run.accepted_at for run in own], [run.offered_at for run in own], kinds)
        for name, own in runs.items()
    }
    first, *others = drafters
    best = max(others, key=lambda name: drafters[name].tau.value)

    def against(kind: str) -> Interval:
        strongest = max(others, key=lambda name: drafters[name].by_kind[kind].value)
        return tau_ratio(*(of_kind(counts[name], kinds, kind) for name in (first, strongest)))

    return AcceptanceComparison(
        nodes=nodes,
        drafters=drafters,
        best=best,
        ratio=tau_ratio(counts[first], counts[best]),
        ratio_by_kind={kind: against(kind) for kind in dict.fromkeys(kinds)},
    )
