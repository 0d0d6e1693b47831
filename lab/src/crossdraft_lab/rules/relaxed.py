"""`relaxed`: LOSSY, at temperature 0. Any tree (Spec-VLA, Wang et al. 2025).

A token is kept if its id lies at most r from the id that the target would have chosen. That makes sense where
neighbouring ids mean neighbouring values, as action bins do, and none for words. The longest path of such tokens is
kept; among equally long ones that which strays least. Then comes the target's own choice. r = 0 is `greedy`.

Vision-language-action models decode greedily, and the rule compares with the one token that the target would choose; a
sampled answer has no such token, so this rule verifies greedy answers only.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Rule, longest
from crossdraft.engine.tree import DraftTree
from crossdraft.specs import Limit, check_settings

NAME = "relaxed"
LIMIT = Limit("a whole number of 0 or more", lambda value: value >= 0)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Acceptance rule that takes tokens whose ids are near that of the target's own.

    Args:
        r: largest distance between ids; the default is that of Spec-VLA's script.

    Raises:
        CrossdraftError: r is negative.
    """

    r: Annotated[int, LIMIT] = 9

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, logits: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `logits` [1 + n, V]."""
        best = logits.argmax(-1).tolist()
        pairs = zip(tree.tokens, tree.parents, strict=True)
        strays = [abs(token - best[parent + 1]) for token, parent in pairs]
        path = longest(tree, [stray <= self.r for stray in strays], [-stray for stray in strays])
        return Acceptance(path, best[path[-1] + 1 if path else 0])


RULE = Rule(
    NAME, lossless=False, greedy=True, verify=Relaxed(),
    takes="any tree, of ids whose neighbours mean neighbouring values", paper="Spec-VLA, Wang et al. 2025",
)  # fmt: skip
