"""Sequoia's static trees (Chen et al. 2024): by dynamic programming the best shape of every size and depth.

With p_j the probability that the j-th child of a node is the one accepted, a tree emits in expectation

    F = 1 + Σ_j p_j · F(subtree below child j),

the bonus included. So T[n, d, b], the most that n nodes within d levels can emit if their root has b children, is the
best split between the last child's subtree and the rest:

    T[n, d, b] = max_m  T[n - m, d, b - 1] + p_b · max_b' T[m, d - 1, b'].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn
from crossdraft.drafters.trees.static import Shape, fill
from crossdraft.engine.drafter import Budget

DEEPEST = 8  # levels; each costs the drafter a pass


def sequoia_tree(expand: ProbsFn, choose: SelectFn, budget: Budget, accepted: Sequence[float]) -> BuiltTree:
    """The best shape of `budget.nodes` nodes, filled with the drafter's tokens.

    Args:
        expand, choose: the drafter.
        budget: see `fill`.
        accepted: [r] how often the child of rank j is the accepted one; see `RankCounts.by_rank`.
    """
    return fill(best_shape(tuple(accepted), budget.nodes), expand, choose, budget)


@lru_cache
def best_shape(accepted: tuple[float, ...], nodes: int) -> Shape:
    """The shape of `nodes` nodes within `DEEPEST` levels that emits most; of fewer if more cannot be accepted."""
    depth = min(nodes, DEEPEST)
    table = ShapeTable(accepted, nodes, depth)
    size = max(range(nodes + 1), key=lambda n: table.emitted(n, depth))
    return table.shape(size, depth)


@dataclass(frozen=True)
class ShapeTable:
    """The best trees of up to `nodes` nodes and `depth` levels, the root not counted in either.

    Args:
        accepted: [r] p_j: how often the child of rank j is the accepted one, where its parent was accepted.
        nodes, depth: largest size and depth of the table.
    """

    accepted: tuple[float, ...]
    nodes: int
    depth: int

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """T[n, d, b] and the m that attains it, n counting the root; -inf where there is no such tree."""
        sizes, widths = self.nodes + 1, min(len(self.accepted), self.nodes) + 1
        best = np.full((sizes + 1, self.depth + 1, widths), -np.inf)
        split = np.zeros(best.shape, dtype=np.intp)
        best[1, :, 0] = 1.0
        for d in range(1, self.depth + 1):
            below = best[:, d - 1].max(-1)
            for b in range(1, widths):
                gain = np.full_like(below, -np.inf)  # stays so where there is no tree, even if p_b = 0
                np.multiply(self.accepted[b - 1], below, out=gain, where=below > 0)
                for n in range(2, sizes + 1):
                    m = np.arange(1, n)
                    values = best[n - m, d, b - 1] + gain[m]
                    at = int(values.argmax())
                    best[n, d, b], split[n, d, b] = values[at], m[at]
        return best, split

    def emitted(self, nodes: int, depth: int) -> float:
        """Tokens per pass, bonus included, of the best tree of exactly `nodes` nodes and at most `depth` levels.

        -inf where so few levels cannot hold so many nodes.
        """
        return float(self._table[0][nodes + 1, depth].max())

    def shape(self, nodes: int, depth: int) -> Shape:
        """The shape of the best tree of exactly `nodes` nodes and at most `depth` levels."""
        best, split = self._table
        paths: list[tuple[int, ...]] = []
        grown: list[tuple[tuple[int, ...], int, int]] = [((), nodes + 1, depth)]
        while grown:
            path, n, d = grown.pop()
            for b in range(int(best[n, d].argmax()), 0, -1):
                m = int(split[n, d, b])
                child = (*path, b - 1)
                paths.append(child)
                grown.append((child, m, d - 1))
                n -= m
        return Shape.from_paths(paths)
