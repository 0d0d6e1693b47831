"""`easd`: LOSSY, when sampling. Sampled drafts (entropy-aware speculative decoding, Su et al. 2025).

As `rejection`, but a token that it keeps is rejected after all where both models are unsure between the same tokens:

    H(p) ≥ entropy,   H(q) ≥ entropy   and   |top(p) ∩ top(q)| / n ≥ overlap,   the top n tokens of either.

Then p(x) becomes 0, and the next token is drawn from what is left of p. It accepts less than `rejection`, never more:
what the paper is after are better answers than the target's own, not faster ones. A token chosen deterministically has
a point mass for q, of entropy 0, and is kept as in `rejection`.

The paper takes its entropy bar from a quantile on a validation set and names no number that holds elsewhere, so all
three defaults are ours.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, aligned, draft_probs, normalised, walk
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.specs import Count, Limit, check_settings

NAME = "easd"
POSITIVE = Limit("a number above 0", lambda value: value > 0)
SHARE = Limit("a number above 0 and at most 1", lambda value: 0 < value <= 1)


@dataclass(frozen=True, slots=True)
class Easd:
    """Acceptance rule that rejects a token where both models are unsure.

    Args:
        entropy: least entropy of both distributions, in nats.
        n: how many of the likeliest tokens are compared.
        overlap: least share of them that both have.

    Raises:
        CrossdraftError: a number outside its range.
    """

    entropy: Annotated[float, POSITIVE] = 1.0
    n: Count = 5
    overlap: Annotated[float, SHARE] = 0.8

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `probs` [1 + n, V]."""
        return walk(aligned(tree, probs), probs, Dice(generator), self.confident_child)

    def confident_child(self, tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
        """Return the child that `rejection` accepts, or none, and p without its token, if both models are unsure."""
        found, left = try_children(tree, parent, p, chance)
        if found == ROOT or not self.both_unsure(p, draft_probs(tree, found, (), p)):
            return found, left
        rest = p.clone()
        rest[tree.tokens[found]] = 0
        return ROOT, normalised(rest, p)

    def both_unsure(self, p: Tensor, q: Tensor) -> bool:
        """True if p and q [V] are both unsure, between the same tokens."""
        both = torch.stack((p, q))
        if torch.special.entr(both).sum(-1).min().item() < self.entropy:
            return False
        n = min(self.n, both.shape[-1])
        tops = both.topk(n, -1).indices
        return torch.isin(tops[0], tops[1]).sum().item() >= self.overlap * n


RULE = Rule(
    NAME, lossless=False, greedy=False, verify=Easd(), takes="a sampled draft",
    paper="entropy-aware speculative decoding, Su et al. 2025",
)  # fmt: skip
