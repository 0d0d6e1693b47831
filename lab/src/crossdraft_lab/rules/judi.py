"""`judi`: LOSSY, when sampling. Sampled drafts (judge decoding without a judge: JuDi, Sun et al. 2026).

Judge decoding (Bachmann et al. 2025) trains a linear judge on hidden states to keep tokens that the target would not
have written, but that do no harm. JuDi shows that such a judge weighs what the two models' logits differ by, and takes
that itself, with nothing to train: a drafted token is kept, whichever it is, where

    max p ≤ confidence   and   KL(p ‖ q) < threshold,   in nats.

Everywhere else it is kept as in `rejection`. A token that q lacks counts with a chance of `LEAST` there, as it would
have after a softmax over a whole vocabulary: drafters may know a part of it. A point mass diverges by 1.5 nats or more
where max p ≤ 0.9. A greedy draft carries no q: this rule verifies sampled answers only. Where the authors decode
greedily, `rejection` stands for "the tokens are the same".
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, aligned, draft_probs, walk
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import DraftTree
from crossdraft.specs import Limit, check_settings

NAME = "judi"
LEAST = 1e-8
POSITIVE = Limit("a number above 0", lambda value: value > 0)
SHARE = Limit("a number between 0 and 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True, slots=True)
class Judi:
    """Acceptance rule that keeps tokens where draft and target distributions differ little.

    Args:
        threshold: least divergence in nats of a token that is not kept for it; the authors scan 0.3, 0.4 and 0.6.
        confidence: target's greatest probability above which only the exact rule decides; by default the authors' own.

    Raises:
        CrossdraftError: a number outside its range.
    """

    threshold: Annotated[float, POSITIVE] = 0.4
    confidence: Annotated[float, SHARE] = 0.9

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `probs` [1 + n, V]."""
        return walk(aligned(tree, probs), probs, Dice(generator), self.harmless_child)

    def harmless_child(self, tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
        """Return the first child whose distribution is close enough to p; else the result of `rejection`."""
        children = tree.children(parent)
        if children and p.max().item() <= self.confidence:
            dists = torch.stack([draft_probs(tree, child, (), p) for child in children])
            for child, far in zip(children, divergences(p, dists).tolist(), strict=True):
                if far < self.threshold:
                    return child, p
        return try_children(tree, parent, p, chance)


def divergences(p: Tensor, dists: Tensor) -> Tensor:
    """[k] KL(p ‖ q) of p [V] and each q of `dists` [k, V], in nats.

    >>> divergences(torch.tensor([0.5, 0.5]), torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
    tensor([0.1438, 8.5172], dtype=torch.float64)
    """
    p, dists = p.double(), dists.double().clamp_min(LEAST)
    return torch.where(p > 0, p * (p / dists).log(), 0).sum(-1)


RULE = Rule(
    NAME, lossless=False, greedy=False, verify=Judi(), takes="a sampled draft",
    paper="JuDi, Sun et al. 2026, after judge decoding, Bachmann et al. 2025",
)  # fmt: skip
