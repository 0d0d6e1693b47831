"""`specinfer`: lossless when sampling. Trees whose sampled siblings were drawn independently (SpecInfer, 2023).

Multi-round rejection sampling with q unchanged between siblings. `speculative` judges such trees in the same way, and
all others too; this rule is there by its own name for those who must know which algorithm ran: it refuses the others.
"""

import torch
from torch import Tensor

from crossdraft.engine.accept import Chance, Dice, Verdict, as_wide, law, refuse_dependent, residual, walk
from crossdraft.engine.tree import ROOT, DraftTree

NAME = "specinfer"


def judge(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Verdict:
    """The tokens emitted are distributed as `probs` [1 + n, V] says.

    Raises:
        CrossdraftError: siblings were drawn without replacement, or from another vocabulary.
    """
    refuse_dependent(tree, NAME)
    return walk(as_wide(tree, probs.shape[-1]), probs, Dice(generator), try_all)


def try_all(tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
    """The first accepted child (`ROOT` if none), and what p [V] has become by the refusals before it."""
    for child in tree.children(parent):
        token, q = tree.tokens[child], law(tree, child, (), p)
        if chance.happens((p[token] / q[token]).item()):
            return child, p
        p = residual(p, q)
    return ROOT, p
