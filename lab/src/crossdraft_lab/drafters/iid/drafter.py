"""`iid`: an event model that draws the children of a node independently, for the rule `kseq` (SpecTr 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.engine.drafter import Budget, Draft
from crossdraft.engine.sampling import sample_one
from crossdraft.engine.target import Target
from crossdraft_lab.drafters.iid.tree_model import TreeDrafter, TreeModelState


@dataclass(frozen=True)
class WithReplacement:
    """Children drawn independently of each other; siblings may have the same token."""

    generator: torch.Generator
    drawn: bool = field(default=True, init=False)

    def __call__(self, probs: Tensor, count: int) -> list[int]:
        return [sample_one(probs, self.generator) for _ in range(count)] if bool(probs.any()) else []


class IndependentChildrenDrafter(TreeDrafter):
    """Drafts trees whose siblings are independent draws, where the rule reads distributions; else as `TreeDrafter`.

    Args:
        model, banned: as in `TreeDrafter`.
        width: draws behind each node.
    """

    def __init__(self, model: Target, width: int, banned: Sequence[int] = ()) -> None:
        super().__init__(model, partial(expand_and_rerank, beam=width, width=lambda dist: width), banned)

    def _propose(self, state: TreeModelState, budget: Budget) -> Draft:
        if state.sampling.greedy or not state.draws.independent:  # a seed's noise leaves nothing to draw twice
            return super()._propose(state, budget)
        select = WithReplacement(state.draws.generator)
        return Draft(self.build(partial(self._probs, state), select, budget).tree)
