"""`ears`: LOSSY, when sampling. Any tree (efficient adaptive rejection sampling, Sun et al. 2025).

Multi-round rejection sampling, as in `rejection`, with a tolerance that grows where the target itself is unsure:

    accept x if p(x) / q(x) ≥ U - tolerance · (1 - max p),   U uniform;

that is with probability min(1, p(x) / q(x) + tolerance · (1 - max p)). A token that the target gives no chance is
refused, as the authors' bound of U - … from below has it. max p is of the target's own distribution, whatever elder
siblings were refused. What follows a refusal is drawn as in `rejection`. A tolerance of 0 would be `rejection`.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, acceptance_ratios, aligned, walk
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import DraftTree
from crossdraft.specs import Limit, check_settings

NAME = "ears"
LIMIT = Limit("a number above 0 and at most 1", lambda value: 0 < value <= 1)


@dataclass(frozen=True, slots=True)
class Ears:
    """Acceptance rule that tolerates more where the target is unsure.

    Args:
        tolerance: what is added to the chance of a token where the target is quite unsure; the default is that of the
            author's runs in vLLM-Ascend.

    Raises:
        CrossdraftError: a tolerance that changes nothing, or is no probability.
    """

    tolerance: Annotated[float, LIMIT] = 0.3

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `probs` [1 + n, V]."""
        tree = aligned(tree, probs)
        ratios = acceptance_ratios(tree, probs)
        added = self.added(probs).tolist()

        def step(tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
            return try_children(tree, parent, p, chance, ratios, added[parent + 1])

        return walk(tree, probs, Dice(generator), step)

    def added(self, probs: Tensor) -> Tensor:
        """[...] what is added to the chance of a token where the target's distribution is `probs` [..., V]."""
        return self.tolerance * (1 - probs.amax(-1))


RULE = Rule(
    NAME, lossless=False, greedy=False, verify=Ears(),
    paper="efficient adaptive rejection sampling, Sun et al. 2025",
)  # fmt: skip
