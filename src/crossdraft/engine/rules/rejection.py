"""`rejection`: lossless when sampling. Any tree.

Multi-round rejection sampling (Leviathan et al. 2023, Chen et al. 2023; trees: SpecInfer 2023, Sequoia 2024) walks
down from the root; at a node with target distribution p it tries the children in order. A child x, drawn from q, is

    accepted with probability min(1, p(x) / q(x)); otherwise p becomes norm(max(0, p - q)) and the next child is tried.

When none is left, the bonus token is drawn from what p has become. The emitted token follows p exactly, if q is the
distribution of x *given the siblings tried before it*. That is

    a point mass on x           for a child chosen deterministically: accepted with probability p(x);
    q without the elder tokens, for a child drawn without replacement, or drawn from another drafter's q and entered in
    renormalised                the tree only where no elder sibling had the same token.

So chains, top-k trees, sampled trees and unions of all these are one rule. What it asks of a drafter: a sampled token
must not be dropped because of its value (whether anything is drafted after it may depend on that), and a
deterministic choice must not depend on what its siblings were sampled as.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, acceptance_ratios, aligned, draft_probs, normalised, walk
from crossdraft.engine.tree import ROOT, DraftTree


def verify(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
    """The tokens emitted are distributed as `probs` [1 + n, V] says.

    Raises:
        CrossdraftError: the drafter gives a chance to ids that the target does not have.
    """
    tree = aligned(tree, probs)
    step = partial(try_children, ratios=acceptance_ratios(tree, probs))
    return walk(tree, probs, Dice(generator), step)


def try_children(
    tree: DraftTree, parent: int, p: Tensor, chance: Chance, ratios: Sequence[float] | None = None, added: float = 0.0
) -> tuple[int, Tensor]:
    """Multi-round rejection of a node's children: the first accepted one (`ROOT` if none), and what p [V] has become.

    A q without the elder tokens is that of a token which differs from them all; an elder token is not tried again.

    Waiting for an answer of the device costs more than computing it. So p(x) / q(x) of an eldest child may be known
    (`ratios`, see `acceptance_ratios`); once that is refused, those of all the others are asked for together, each as
    if those before it had been refused.

    What is `added` to the ratio of a token that the target gives any chance makes the rule lossy; see `ears`.
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
    """norm(max(0, p - q)) over [..., V]: what the target still owes after a candidate drawn from q was refused.

    The sum is 0 only if p = q. Such a candidate is refused by rounding alone, and p itself is then right.
    """
    return normalised((p - q).clamp_min(0), p)
