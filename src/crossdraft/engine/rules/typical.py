"""`typical`: LOSSY, when sampling. Any tree (Medusa, Cai et al. 2024).

A token is kept if its probability under the target exceeds a threshold, which is lower where the target is unsure:

    p(x) > min(eps, delta · e^(-H(p))),   H the entropy in nats.

The longest path of such tokens is kept; among equally long paths, the likeliest. The bonus is the target's most likely
token, as in Medusa, so nothing is drawn at random. At temperature 0 the rule would be `greedy`, which is lossless; so
this rule verifies sampled answers only.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, longest
from crossdraft.engine.tree import DraftTree
from crossdraft.specs import Limit, check_settings

NAME = "typical"
LIMIT = Limit("a number between 0 and 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True, slots=True)
class Typical:
    """The rule, with the settings of its threshold.

    Args:
        eps: a token likelier than this is always kept; Medusa's `posterior_threshold`.
        delta: factor of e^(-H) in the threshold; Medusa's `posterior_alpha`.

    Raises:
        CrossdraftError: a number outside its range.
    """

    eps: Annotated[float, LIMIT] = 0.09
    delta: Annotated[float, LIMIT] = 0.3

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `probs` [1 + n, V]."""
        bar = (self.delta * torch.exp(-torch.special.entr(probs).sum(-1))).clamp_max(self.eps)
        parents = torch.tensor(tree.parents, dtype=torch.long, device=probs.device) + 1
        tokens = torch.tensor(tree.tokens, dtype=torch.long, device=probs.device)
        likely = probs[parents, tokens]
        path = longest(tree, (likely > bar[parents]).tolist(), likely.log().tolist())
        last = path[-1] + 1 if path else 0
        return Acceptance(path, int(probs[last].argmax()))
