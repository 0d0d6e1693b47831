"""`kseq`: lossless when sampling. Siblings drawn independently, by the drafter `iid` (SpecTr, Sun et al. 2023).

k-SEQ, an approximate optimal transport from k independent draws to the target's distribution. Siblings drawn from the
same q share the work: with a common divisor ρ, each of them is

    accepted with probability min(1, p(x) / (ρ q(x))).

β = Σ min(p/ρ, q) is the chance of one, so k together emit x with probability min(p/ρ, q)(x) · (1 - (1-β)^k)/β. What
that leaves of p is what the target still owes. It is never negative if (1 - (1-β)^k)/β ≤ ρ, and the smallest such ρ in
[1, k] accepts most: at least 1 - 1/e of what any lossless rule could. With k = 1, ρ is 1: `rejection`.

A token that was chosen deterministically is a group of its own, with a point mass for q; groups are tried in turn, each
on what those before it have left.
"""

from itertools import groupby

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, aligned, draft_probs, normalised, walk
from crossdraft.engine.devices import to_device
from crossdraft.engine.tree import ROOT, DraftTree

NAME = "kseq"
BISECTIONS = 20  # any ρ on the upper side is exact; a millionth too large accepts a millionth less


def verify(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
    """Verify a tree; tokens follow `probs` [1 + n, V] if siblings of one row were drawn independently.

    Raises:
        CrossdraftError: the drafter gives a chance to ids that the target does not have.
    """
    return walk(aligned(tree, probs), probs, Dice(generator), try_groups)


def try_groups(tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
    """Return the first accepted child (`ROOT` if none), and p [V] less what the refused groups have used."""
    for group in groups(tree, parent):
        q = draft_probs(tree, group[0], (), p)
        rho = divisor(p, q, len(group))
        tokens = to_device(torch.tensor([tree.tokens[child] for child in group]), p.device)
        chances = (p[tokens] / (rho * q[tokens])).tolist()  # all at once: each transfer from the device blocks
        for child, ratio in zip(group, chances, strict=True):
            if chance.happens(ratio):
                return child, p
        p = remainder(p, q, len(group), rho)
    return ROOT, p


def groups(tree: DraftTree, parent: int) -> list[list[int]]:
    """Children of a node that stand side by side and come from the same row; every other child by itself."""
    children = tree.children(parent)
    rows, tokens = ([values[child] for child in children] for values in (tree.drawn_from, tree.tokens))
    drawn = [False] * len(children)
    if tree.dists is not None:
        # A token that q's rounding lost is a point mass in `draft_probs`, hence no part of its row's group.
        drawn = (tree.dists[rows, tokens] > 0).tolist()
    origins = {
        child: (row, -1) if row >= 0 and possible else (-1, child)
        for child, row, possible in zip(children, rows, drawn, strict=True)
    }
    return [list(group) for _, group in groupby(children, lambda child: origins[child])]


def divisor(p: Tensor, q: Tensor, k: int) -> Tensor:
    """[..., 1] the smallest ρ in [1, k] with 1 - (1-β)^k ≤ ρβ, from above, for p and q [..., V]."""
    low = torch.ones_like(p[..., :1])
    high = low * k
    for _ in range(BISECTIONS if k > 1 else 0):
        middle = (low + high) / 2
        beta = chance_of_one(p, q, middle)
        too_small = chance_of_any(beta, k) > middle * beta
        low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    return high


def remainder(p: Tensor, q: Tensor, k: int, rho: Tensor) -> Tensor:
    """[..., V] what the target still owes after k refusals; p itself if only rounding can have refused."""
    beta = chance_of_one(p, q, rho)
    times = torch.where(beta > 0, chance_of_any(beta, k) / beta, 0)
    return normalised((p - torch.minimum(q, p / rho) * times).clamp_min(0), p)


def chance_of_one(p: Tensor, q: Tensor, rho: Tensor) -> Tensor:
    """[..., 1] β: how often one draw from q is accepted."""
    return torch.minimum(p / rho, q).sum(-1, keepdim=True).clamp_max(1)


def chance_of_any(beta: Tensor, k: int) -> Tensor:
    """1 - (1-β)^k, also where β is tiny."""
    return -torch.expm1(k * torch.log1p(-beta))


RULE = Rule(
    NAME, lossless=True, greedy=False, verify=verify, drafter="iid", takes="siblings drawn independently",
    paper="SpecTr: Sun et al. 2023",
)  # fmt: skip
