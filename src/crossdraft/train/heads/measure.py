"""What a head is worth under the real engine: τ of trees and of chains, and how often a guess of each rank is right."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from crossdraft.drafters.evaluate import Tally, answer_all, sum_up
from crossdraft.drafters.heads.coupled import CoupledDrafter, Grow
from crossdraft.drafters.trees import RankCounts, Shape, fill
from crossdraft.engine.drafter import Budget, Draft, Drafter, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.train.heads.recipe import Measure


@dataclass(frozen=True)
class Accepted:
    """What the target took of one kind of draft.

    Args:
        tau: see `drafters.evaluate.TAU`.
        per_position: share of drafts at least so deep whose path was kept to that depth.
    """

    tau: float
    per_position: tuple[float, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"tau": round(self.tau, 3), "per_position": [round(share, 3) for share in self.per_position]}


class _Counted:
    """A head's drafter whose verdicts are counted by depth and rank.

    `counts` sees the first tree of every propose–commit pair as the builder made it.
    """

    def __init__(self, drafter: CoupledDrafter[Any]) -> None:
        self.drafter = drafter
        self.needs = drafter.needs
        self.counts = RankCounts()
        self._last: dict[int, Draft] = {}

    def begin(self, requests: Sequence[Request]) -> list[Any]:
        return self.drafter.begin(requests)

    def propose(self, states: Sequence[Any], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = self.drafter.propose(states, budgets)
        self._last |= {id(state): draft for state, draft in zip(states, drafts, strict=True)}
        return drafts

    def commit(self, states: Sequence[Any], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            draft = self._last.pop(id(state), None)
            if draft is not None:
                self.counts.observe(draft.tree, output.path)
        self.drafter.commit(states, outputs)

    def fork(self, states: Sequence[Any]) -> list[Any]:
        return self.drafter.fork(states)

    def end(self, states: Sequence[Any]) -> None:
        for state in states:
            self._last.pop(id(state), None)
        self.drafter.end(states)


def count_ranks(
    target: Target, drafter: CoupledDrafter[Any], requests: Sequence[Request], settings: Measure
) -> RankCounts:
    """How often a guess of each rank is right at each depth, offered along the head's own best chain."""
    shape = Shape.comb(settings.depth, settings.ranks)
    counted = _Counted(with_grow(drafter, partial(fill, shape)))
    answer_all(target, counted, requests, len(shape))
    return counted.counts


def measure(
    target: Target, drafter: Drafter[Any], requests: Sequence[Request], nodes: int, temperature: float = 0.0
) -> Accepted:
    """Answer the requests with that drafter, its tree of at most so many nodes offered in every round."""
    sampled = [
        replace(request, sampling=Sampling(temperature=temperature, seed=seed)) for seed, request in enumerate(requests)
    ]
    whole = sum_up([Tally.of(answer.stats) for answer in answer_all(target, drafter, sampled, nodes)])
    shares = tuple(kept / offered for kept, offered in zip(whole.kept_at, whole.offered_at, strict=True))
    return Accepted(whole.tau, shares)


def with_grow(drafter: CoupledDrafter[Any], grow: Grow) -> CoupledDrafter[Any]:
    """The same head growing other trees."""
    return type(drafter)(drafter.head, grow, sorted(drafter.ends))


def figures_of(found: dict[str, Accepted]) -> dict[str, object]:
    """Plain values of several measurements."""
    return {name: accepted.to_json() for name, accepted in found.items()}
