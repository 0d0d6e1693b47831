"""`fuzzy`: LOSSY, when sampling. Sampled drafts (fuzzy speculative decoding, Holsman et al. 2025; PyramidSD, 2025).

A drafted token is kept, whichever it is, if the distribution that it was drawn from is close enough to the target's:

    JS(p, q) = H((p + q)/2) - (H(p) + H(q))/2 ≤ threshold,   in nats, between 0 and ln 2.

Where it is not, the drafting ends, and the next token is drawn from p: the decision did not look at the token, so no
residual is owed. Of siblings the first whose own distribution is close enough is kept. A token chosen deterministically
has a point mass for q and is kept where the target is nearly sure of it. A greedy draft carries no q, and at
temperature 0 p is a point mass too: this rule verifies sampled answers only.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, aligned, draft_probs, walk
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.specs import Limit, check_settings

NAME = "fuzzy"
LIMIT = Limit("a number of at least 0 and below ln 2 = 0.693", lambda value: 0 <= value < math.log(2))


@dataclass(frozen=True, slots=True)
class Fuzzy:
    """Acceptance rule that keeps tokens whose draft distribution is close to the target's.

    Args:
        threshold: largest Jensen-Shannon divergence in nats; the default is that of the authors' example, the
            literature's range is 0.2 to 0.5.

    Raises:
        CrossdraftError: a threshold that would keep everything, or nothing.
    """

    threshold: Annotated[float, LIMIT] = 0.4

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `probs` [1 + n, V]."""
        return walk(aligned(tree, probs), probs, Dice(generator), self.close_child)

    def close_child(self, tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
        """Return the first child whose distribution is close enough to p, and p unchanged."""
        children = tree.children(parent)
        if not children:
            return ROOT, p
        found = divergences(p, torch.stack([draft_probs(tree, child, (), p) for child in children])).tolist()
        close = (child for child, far in zip(children, found, strict=True) if far <= self.threshold)
        return next(close, ROOT), p


RULE = Rule(
    NAME, lossless=False, greedy=False, verify=Fuzzy(), takes="a sampled draft",
    paper="fuzzy speculative decoding, Holsman et al. 2025; PyramidSD 2025",
)  # fmt: skip


def divergences(p: Tensor, dists: Tensor) -> Tensor:
    """[k] Jensen-Shannon divergences of p [V] and each of `dists` [k, V], in nats."""
    both = torch.stack([(p + dists) / 2, p.expand_as(dists), dists])
    entropy = torch.special.entr(both.double()).sum(-1)
    return (entropy[0] - (entropy[1] + entropy[2]) / 2).clamp_min(0)
