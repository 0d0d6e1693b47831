"""`rejection`: lossless when sampling. Any tree.

Multi-round rejection sampling (Leviathan et al. 2023, Chen et al. 2023; trees: SpecInfer 2023, Sequoia 2024) walks
down from the root; at a node with target distribution p it tries the children in order. A child x, drawn from q, is

    accepted with probability min(1, p(x) / q(x)); otherwise p becomes norm(max(0, p - q)) and the next child is tried.

When no child is left, the bonus token is drawn from the residual that p has become. The emitted token follows the
target's p exactly if q is the distribution of x *given the siblings tried before it*. This q is

    a point mass on x           for a child chosen deterministically: accepted with probability p(x);
    q without earlier siblings' for a child drawn without replacement, or drawn from another drafter's q and entered in
    tokens, renormalised        the tree only if no earlier sibling had the same token.

So one rule serves chains, top-k trees, sampled trees and unions of these. A drafter must keep two conditions: it must
not drop a sampled token because of its value (though it may draft no further after it), and a deterministic choice must
not depend on the tokens that siblings were sampled as.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, acceptance_ratios, aligned, draft_probs, normalised, walk
from crossdraft.engine.tree import ROOT, DraftTree


def verify(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
    """Verify a tree; the emitted tokens follow the distributions `probs` [1 + n, V].

    Raises:
        CrossdraftError: the drafter gives probability to ids that the target does not have.
    """
    tree = aligned(tree, probs)
    step = partial(try_children, ratios=acceptance_ratios(tree, probs))
    return walk(tree, probs, Dice(generator), step)


def try_children(
    tree: DraftTree, parent: int, p: Tensor, chance: Chance, ratios: Sequence[float] | None = None, added: float = 0.0
) -> tuple[int, Tensor]:
    """Try a node's children in order; returns the first accepted one (`ROOT` if none) and the residual p [V].

    A child whose token an earlier sibling has is not tried.

    Reading a number from the device costs more than computing it. So the ratio p(x) / q(x) of the first child may be
    given (`ratios`, see `acceptance_ratios`); if that child is refused, the ratios of all others are read at once, each
    computed as if the children before it had been refused.

    `added` is added to the ratio of each token with p(x) > 0, which makes the rule lossy; see the lab's rule `ears`.
    """

    def passes(ratio: float) -> bool:
        return chance.happens(ratio + added if ratio > 0 else ratio)

    first: dict[int, int] = {}
    for child in tree.children(parent):
        first.setdefault(tree.tokens[child], child)
    before, asked, refused = [p], list[Tensor](), list[int]()
    for token, child in first.items():
        q = draft_probs(tree, child, refused, p)
        if refused:
            asked.append(p[token] / q[token])
        elif passes(ratios[child] if ratios is not None else (p[token] / q[token]).item()):
            return child, p
        p = residual(p, q)
        refused.append(token)
        before.append(p)
    found = torch.stack(asked).tolist() if asked else []
    for child, left, ratio in zip(list(first.values())[1:], before[1:], found, strict=False):
        if passes(ratio):
            return child, left
    return ROOT, p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)) over [..., V]: the target's distribution after a candidate drawn from q was refused.

    The sum is 0 only if p = q. Then rounding alone refused the candidate, and p itself is right.
    """
    return normalised((p - q).clamp_min(0), p)
