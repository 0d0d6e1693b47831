"""`crossdraft bench acceptance`: does seeing help? τ of the event drafter over τ of its blind twin, same rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossdraft.api import Engine, Options
from crossdraft.bench.blank import blank_window
from crossdraft.bench.contestants import EngineContestant, Models, close_all
from crossdraft.bench.measure import Run, measure
from crossdraft.bench.statistics import Interval, bootstrap, per_position
from crossdraft.bench.workload import Item
from crossdraft.engine.cost import CostModel
from crossdraft.engine.placement import Inline
from crossdraft.engine.target import Target

NODES = 8


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was accepted of one drafter: τ with its interval, and the share kept at each depth."""

    tau: Interval
    per_position: tuple[float, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            **self.tau.to_json("tau"),
            "accepted_per_position": [round(share, 3) for share in self.per_position],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both drafters, the ratio of their τ, and τ of (event, blind) by kind of question."""

    nodes: int
    event: Acceptance
    blind: Acceptance
    ratio: Interval
    by_kind: dict[str, tuple[float, float]]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "nodes": self.nodes,
            "event": self.event.to_json(),
            "blind": self.blind.to_json(),
            "ratio": self.ratio.to_json(),
            "by_kind": {
                kind: {"event": round(event, 3), "blind": round(blind, 3)}
                for kind, (event, blind) in self.by_kind.items()
            },
        }


def compare_acceptance(
    target: Target,
    models: Models,
    items: Sequence[Item],
    nodes: int = NODES,
    tick: Callable[[str], None] | None = None,
) -> Comparison:
    """Answer every pair with both drafters, each offering a chain of `nodes` in every round, the first included.

    Nothing adapts, and the ride-along's draft is as long as any other, so that τ depends on the drafter alone.
    """
    options = Options(adaptive=False, nodes=nodes, hidden_nodes=nodes)
    made = {}
    for name, source in (("event", models.event), ("blind", models.blind)):
        placement = Inline(models.drafter(source, target)(), CostModel(), "before")
        engine = Engine(target, placement, options, CostModel())
        made[name] = EngineContestant(engine, blank_window(models.blind), blind=name == "blind")
    try:
        results = measure(made, items, repeats=1, tick=tick)
    finally:
        close_all(made.values())
    return compare(results.of("event"), results.of("blind"), [item.kind for item in items], nodes)


def compare(event: Sequence[Run], blind: Sequence[Run], kinds: Sequence[str], nodes: int) -> Comparison:
    """The figures of two drafters' runs over the same pairs."""
    counts = np.array(
        [[(run.accepted, run.rounds) for run in runs] for runs in (event, blind)], dtype=np.float64
    )

    def tau(drafter: int, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
        accepted, rounds = np.moveaxis(counts[drafter][chosen].sum(-2), -1, 0)
        return 1 + accepted / rounds

    size = len(event)
    groups = {kind: np.flatnonzero(np.asarray(kinds) == kind) for kind in dict.fromkeys(kinds)}
    return Comparison(
        nodes=nodes,
        event=Acceptance(bootstrap(lambda chosen: tau(0, chosen), size), _positions(event)),
        blind=Acceptance(bootstrap(lambda chosen: tau(1, chosen), size), _positions(blind)),
        ratio=bootstrap(lambda chosen: tau(0, chosen) / tau(1, chosen), size),
        by_kind={kind: (float(tau(0, chosen)), float(tau(1, chosen))) for kind, chosen in groups.items()},
    )


def _positions(runs: Sequence[Run]) -> tuple[float, ...]:
    return tuple(per_position([run.accepted_at for run in runs], [run.offered_at for run in runs]))
