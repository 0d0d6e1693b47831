"""`speculative`: lossless when sampling. Any tree; what is used where no rule is named.

Multi-round rejection sampling (Leviathan et al. 2023, Chen et al. 2023; trees: SpecInfer 2023, Sequoia 2024) walks
down from the root; at a node with target distribution p it tries the children in order. A child x, drawn from q, is

    accepted with probability min(1, p(x) / q(x)); otherwise p becomes norm(max(0, p - q)) and the next child is tried.

When none is left, the bonus token is drawn from what p has become. The emitted token follows p exactly, if q is the
law of x *given the siblings tried before it*. That law is

    a point mass on x           for a child chosen deterministically: accepted with probability p(x);
    q without the elder tokens, for a child drawn without replacement, or drawn from another drafter's q and entered in
    renormalised                the tree only where no elder sibling had the same token.

So chains, top-k trees, sampled trees and unions of all these are one rule. What it asks of a drafter: a sampled token
must not be dropped because of its value (whether anything is drafted behind it may depend on that), and a
deterministic choice must not depend on what was sampled beside it.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, aligned, eldest_odds, law, try_in_order, walk
from crossdraft.engine.tree import DraftTree


def judge(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
    """The tokens emitted are distributed as `probs` [1 + n, V] says.

    Raises:
        CrossdraftError: the drafter gives a chance to ids that the target does not have.
    """
    tree = aligned(tree, probs)
    step = partial(try_children, known=eldest_odds(tree, probs))
    return walk(tree, probs, Dice(generator), step)


def try_children(
    tree: DraftTree, parent: int, p: Tensor, chance: Chance, known: Sequence[float] | None = None
) -> tuple[int, Tensor]:
    """The first accepted child (`ROOT` if none), and what p [V] has become by the refusals before it.

    A law that leaves out the elder tokens is that of a token which differs from them all; an elder token is not tried
    again.
    """
    first: dict[int, int] = {}
    for child in tree.children(parent):
        first.setdefault(tree.tokens[child], child)
    return try_in_order(tree, list(first.values()), p, chance, law, known)
