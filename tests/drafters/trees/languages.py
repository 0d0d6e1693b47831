"""Small languages as drafters: their distributions after every node, and chances that can be drawn or enumerated."""

from collections.abc import Sequence

import torch
from torch import Tensor

from crossdraft.drafters.trees.builder import ProbsFn
from crossdraft.engine.accept import Chance
from crossdraft.engine.tree import DraftTree
from tests.engine.drafting import Language


def says(language: Language) -> ProbsFn:
    """What a language says after nodes of a tree."""

    def expand(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        return torch.stack([language(tuple(tree.path_tokens(node))) for node in nodes])

    return expand


def table(rows: dict[tuple[int, ...], list[float]]) -> ProbsFn:
    """A drafter worked by hand: prefix -> distribution; nothing follows what is not there."""
    width = len(next(iter(rows.values())))

    def expand(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        found = [rows.get(tuple(tree.path_tokens(node)), [0.0] * width) for node in nodes]
        return torch.tensor(found, dtype=torch.float64)

    return expand


class ByChance:
    """Draws children without replacement, with chances that a test enumerates."""

    drawn = True

    def __init__(self, chance: Chance) -> None:
        self.chance = chance

    def __call__(self, probs: Tensor, count: int) -> list[int]:
        left, tokens = probs.clone(), []
        for _ in range(min(count, int((probs > 0).sum()))):
            tokens.append(self.chance.draw(left))
            left[tokens[-1]] = 0
        return tokens
