"""Sequoia's search for a static tree (Chen et al. 2024): the best one of every size and depth, then the best of these.

With p_j the chance that the j-th child of a node is the one accepted, a tree emits in expectation

    F = 1 + Σ_j p_j · F(subtree below child j),

the bonus included. So T[n, d, b], the most that n nodes within d levels can emit if their root has b children, is the
best split between the last child's subtree and the rest:

    T[n, d, b] = max_m  T[n - m, d, b - 1] + p_b · max_b' T[m, d - 1, b'].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crossdraft.drafters.trees.shape import Shape
from crossdraft.engine.tree import ROOT


@dataclass(frozen=True)
class ShapeTable:
    """The best trees of up to `nodes` nodes and `depth` levels, the root not counted in either.

    Args:
        accepted: [r] p_j: how often the guess of rank j is the accepted one, where its parent was accepted.
        nodes, depth: how far to look.
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
                    place = int(values.argmax())
                    best[n, d, b], split[n, d, b] = values[place], m[place]
        return best, split

    def emitted(self, nodes: int, depth: int) -> float:
        """Tokens per pass, bonus included, of the best tree of exactly that size and at most that depth.

        -inf where so few levels cannot hold so many nodes.
        """
        return float(self._table[0][nodes + 1, depth].max())

    def shape(self, nodes: int, depth: int) -> Shape:
        """That tree, level by level."""
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


def cheapest_shape(table: ShapeTable, step: float, verify: Callable[[int], float]) -> Shape:
    """The tree with the least time per emitted token, (d · step + verify(n + 1)) / F; empty where none pays.

    Args:
        table: what can be had.
        step: time of the drafter's pass over one level.
        verify: time of the target's pass over so many new tokens, the root among them.
    """
    least, found = verify(1), (0, 0)
    for nodes in range(1, table.nodes + 1):
        for depth in range(1, table.depth + 1):
            emitted = table.emitted(nodes, depth)
            if emitted > 0 and (time := (depth * step + verify(nodes + 1)) / emitted) < least:
                least, found = time, (nodes, depth)
    return table.shape(*found)


def expected_emitted(shape: Shape, accepted: Sequence[float]) -> float:
    """F of any shape, straight from its definition."""
    path_probs: list[float] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        path_probs.append((1.0 if parent == ROOT else path_probs[parent]) * accepted[rank])
    return 1 + sum(path_probs)
