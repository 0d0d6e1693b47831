"""`ensemble`: LOSSY, when sampling. Sampled drafts (DIVERSE; `assistant_ensemble_weight` of `transformers`).

Multi-round rejection sampling, as in `rejection`, against the mixture w·p + (1 - w)·q instead of p. The answer
follows the mixture wherever something was drafted, and p after the last drafted token. w = 1 would be `rejection`,
w = 0 would trust the drafter blindly. q is what a node's first sampled child was drawn from; where no child was sampled
there is no q, and p itself decides. A greedy draft carries no q: this rule verifies sampled answers only.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, aligned, walk
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import DraftTree
from crossdraft.specs import Limit, check_settings

NAME = "ensemble"
LIMIT = Limit("a number above 0 and below 1", lambda value: 0 < value < 1)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Acceptance rule that samples against a mixture of target and drafter.

    Args:
        w: the target's share. `transformers` has no default; ours is halves.

    Raises:
        CrossdraftError: w is not between 0 and 1.
    """

    w: Annotated[float, LIMIT] = 0.5

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `probs` [1 + n, V]."""
        return walk(aligned(tree, probs), probs, Dice(generator), self.try_against_mixture)

    def try_against_mixture(self, tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
        """Return the first accepted child, and the residual of the mixture."""
        return try_children(tree, parent, self.mixture(tree, parent, p), chance)

    def mixture(self, tree: DraftTree, parent: int, p: Tensor) -> Tensor:
        """[V] w·p + (1 - w)·q; p itself where nothing was sampled."""
        rows = [tree.drawn_from[child] for child in tree.children(parent) if tree.drawn_from[child] >= 0]
        if tree.dists is None or not rows:
            return p
        return self.w * p + (1 - self.w) * tree.dists[rows[0]].to(p)


RULE = Rule(
    NAME, lossless=False, greedy=False, verify=Ensemble(), takes="a sampled draft",
    paper="DIVERSE; `assistant_ensemble_weight` in `transformers`",
)  # fmt: skip
