"""`specinfer`: lossless when sampling. Trees whose sampled siblings were drawn independently (SpecInfer, 2023).

Multi-round rejection sampling with q unchanged between siblings. `speculative` judges such trees in the same way, and
all others too; this rule is there by its own name for those who must know which algorithm ran: it refuses the others.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from crossdraft.engine.accept import (
    Acceptance,
    Chance,
    Dice,
    aligned,
    eldest_odds,
    law,
    refuse_dependent,
    try_in_order,
    walk,
)
from crossdraft.engine.tree import DraftTree

NAME = "specinfer"


def judge(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
    """The tokens emitted are distributed as `probs` [1 + n, V] says.

    Raises:
        CrossdraftError: siblings were drawn without replacement, or from another vocabulary.
    """
    refuse_dependent(tree, NAME)
    tree = aligned(tree, probs)
    step = partial(try_all, known=eldest_odds(tree, probs))
    return walk(tree, probs, Dice(generator), step)


def try_all(
    tree: DraftTree, parent: int, p: Tensor, chance: Chance, known: Sequence[float] | None = None
) -> tuple[int, Tensor]:
    """The first accepted child (`ROOT` if none), and what p [V] has become by the refusals before it."""
    return try_in_order(tree, tree.children(parent), p, chance, _law_alone, known)


def _law_alone(tree: DraftTree, child: int, refused: Sequence[int], p: Tensor) -> Tensor:
    return law(tree, child, (), p)
