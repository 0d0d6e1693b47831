"""Medusa's search for a static tree (Cai et al. 2024, §2.3.3): add the node that adds most, again and again."""

import heapq
import math
from collections.abc import Sequence

from crossdraft.drafters.trees.shape import Shape
from crossdraft.engine.tree import ROOT


def greedy_shape(accuracies: Sequence[Sequence[float]], nodes: int) -> Shape:
    """The tree of `nodes` nodes with the most accepted tokens to be expected, best nodes first.

    A node adds the chance that its whole path is right, the product of the accuracies along it. That is never more
    than its parent adds, so the best next node always lies beside those taken, and taking it is optimal for every
    size: the first k nodes are the best tree of k.

    Args:
        accuracies: [depth][rank] how often the drafter's guess of that rank is right at that depth, if everything
            before it is.
        nodes: how many; fewer where no other has a chance.
    """
    parents: list[int] = []
    ranks: list[int] = []
    candidates: list[tuple[float, tuple[int, ...], int]] = []

    def offer(path: tuple[int, ...], parent: int, reach: float) -> None:
        for rank, accuracy in enumerate(accuracies[len(path)] if len(path) < len(accuracies) else ()):
            if reach * accuracy > 0:
                heapq.heappush(candidates, (-reach * accuracy, (*path, rank), parent))

    offer((), ROOT, 1.0)
    while candidates and len(parents) < nodes:
        minus_reach, path, parent = heapq.heappop(candidates)
        parents.append(parent)
        ranks.append(path[-1])
        offer(path, len(parents) - 1, -minus_reach)
    return Shape(tuple(parents), tuple(ranks))


def expected_accepted(shape: Shape, accuracies: Sequence[Sequence[float]]) -> float:
    """Accepted tokens to be expected of a shape, the bonus not counted."""
    return sum(math.prod(accuracies[depth][rank] for depth, rank in enumerate(path)) for path in shape.paths)
