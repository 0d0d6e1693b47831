"""`crossdraft bench acceptance`: τ of drafters under the same rounds, whatever they cost.

Compared are the event drafter and its blind twin (is seeing worth anything?), and a union and its parts.
"""

from collections.abc import Callable, Sequence
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.experiments.record import FigureTable
from crossdraft_lab.bench.specs import spec_of
from crossdraft_lab.bench.statistics import Interval, acceptance_figures, of_kind, tau_ratio
from crossdraft_lab.bench.study import Answers, Study, plain
from crossdraft_lab.bench.variants import fixed
from crossdraft_lab.bench.workload import Workload

DRAFTERS = ("event", "blind")


def acceptance_study(models: Models, work: Workload, specs: Sequence[str] = DRAFTERS, nodes: int = 8) -> Study:
    """Study of every pair with every drafter; each round, the first included, offers a tree of at most `nodes`.

    Nothing adapts, and the hidden draft is as long as any other, so that τ depends on the drafter alone.

    Raises:
        CrossdraftError: fewer than two drafters, a drafter that is named twice, or a spec that cannot be read.
    """
    if len(specs) < 2 or len(set(specs)) != len(specs):
        raise CrossdraftError(
            f"A comparison needs two different drafters or more, not {', '.join(specs) or 'none'}; the first one is "
            "compared with the best of the others."
        )
    for spec in specs:
        spec_of(spec)
    return Study(tuple(fixed(spec, spec, nodes) for spec in specs), work, warm_ups=0, models=models)


def compare(found: Answers) -> dict[str, Any]:
    """Figures of all drafters, and the ratio of the first one's τ to the best of the others', over all and by kind."""
    kinds = [pair["kind"] for pair in found.pairs]
    counts = {name: [(len(run.tokens), run.rounds) for run in found.results.of(name)] for name in found.names}
    drafters = {
        name: acceptance_figures(counts[name], [run.accepted_at for run in own], [run.offered_at for run in own], kinds)
        for name in found.names
        for own in [found.results.of(name)]
    }
    first, *others = drafters
    best = max(others, key=lambda name: drafters[name]["tau"])

    def against(kind: str) -> Interval:
        strongest = max(others, key=lambda name: drafters[name]["by_kind"][kind]["tau"])
        return tau_ratio(*(of_kind(counts[name], kinds, kind) for name in (first, strongest)))

    return {
        "drafters": drafters,
        "best_other": best,
        "ratio": tau_ratio(counts[first], counts[best]),
        "ratio_by_kind": {kind: against(kind) for kind in dict.fromkeys(kinds)},
    }


def compared_table(found: dict[str, Any]) -> FigureTable:
    """Table with a row for each kind of question, and one for all."""
    drafters: dict[str, Any] = found["drafters"]

    def taus(of: Callable[[dict[str, Any]], dict[str, Any]]) -> list[str]:
        return [str(Interval.from_json(of(one), "tau")) for one in drafters.values()]

    each = [(kind, *taus(lambda one, kind=kind: one["by_kind"][kind]), str(over)) for kind, over in
            found["ratio_by_kind"].items()]  # fmt: skip
    every = ("all", *taus(lambda one: one), str(found["ratio"]))
    depth = ("depth of a draft", *(f"{one['depth']:.2f}" for one in drafters.values()), "")
    return FigureTable("", ("kind", *(f"τ {spec}" for spec in drafters), "first / best other"), (*each, every, depth))


def compared_json(found: dict[str, Any]) -> dict[str, Any]:
    """Plain values."""
    return plain(found)
