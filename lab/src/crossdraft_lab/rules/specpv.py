"""`specpv`: LOSSY, at temperature 0. Any tree, of the drafter `partial` (SpecPV, Tan et al. 2025).

SpecPV verifies drafts against a part of the cache; what that lets through stands, and every n tokens a full pass
corrects the cache. Here the drafter `partial` is that verification, a round's nodes are the n tokens, and the target's
pass over them is the full one: its keys and values replace the partial ones, and the token after them is its own.

A drafted token stands if the target gives it a probability of at least `floor`. With 0, as in SpecPV, all of them do,
but those that the request rules out; from the first that does not on the answer is the target's own (the exact
fallback). The longest path that stands is kept; among equally long ones the likeliest.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Rule, longest
from crossdraft.engine.tree import DraftTree
from crossdraft.specs import Limit, check_settings

NAME = "specpv"
LIMIT = Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True, slots=True)
class SpecPV:
    """Acceptance rule that takes tokens of at least a given probability.

    Args:
        floor: the least probability, by the target's own pass.

    Raises:
        CrossdraftError: the setting is no probability.
    """

    floor: Annotated[float, LIMIT] = 0.0

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(self, tree: DraftTree, logits: Tensor, generator: torch.Generator) -> Acceptance:
        """Verify a tree against `logits` [1 + n, V]."""
        best, logs = logits.argmax(-1).tolist(), logits.float().log_softmax(-1)
        chances = [float(logs[parent + 1, token]) for token, parent in zip(tree.tokens, tree.parents, strict=True)]
        stands = [chance > -torch.inf and chance >= self._least for chance in chances]
        path = longest(tree, stands, chances)
        return Acceptance(path, best[path[-1] + 1 if path else 0])

    @property
    def _least(self) -> float:
        return float(torch.tensor(self.floor).log())


RULE = Rule(
    NAME, lossless=False, greedy=True, verify=SpecPV(), drafter="partial", paper="SpecPV, Tan et al. 2025",
)  # fmt: skip
