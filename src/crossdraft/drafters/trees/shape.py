"""The shape of a draft tree, before it has tokens: a parent for each node, and which of its parent's guesses it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from crossdraft.engine.tree import ROOT
from crossdraft.errors import CrossdraftError


@dataclass(frozen=True)
class Shape:
    """Parents and ranks of nodes, parents first.

    Args:
        parents: [n] index of each node's parent, `-1` for a child of the root; `parents[i] < i`.
        ranks: [n] which guess of its parent a node is: 0 = the best. Siblings have different ones.

    Raises:
        CrossdraftError: lengths differ, a parent does not precede its child, or siblings share a rank.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        ordered = all(ROOT <= parent < node for node, parent in enumerate(self.parents))
        places = set(zip(self.parents, self.ranks, strict=False))
        if len(self.parents) != len(self.ranks) or not ordered or min(self.ranks, default=0) < 0:
            raise CrossdraftError(
                "The shape of a draft tree needs a rank of 0 or more per node, and parents before their children; got "
                f"parents {self.parents} and ranks {self.ranks}."
            )
        if len(places) != len(self.parents):
            raise CrossdraftError(f"Siblings of a draft tree share a rank: parents {self.parents}, ranks {self.ranks}.")

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> "Shape":
        """From one path of ranks per node, as Medusa's published trees are written; any order.

        >>> Shape.from_paths([[0], [0, 0], [1], [0, 1]])
        Shape(parents=(-1, -1, 0, 0), ranks=(0, 1, 0, 1))
        """
        places: dict[tuple[int, ...], int] = {(): ROOT}
        parents, ranks = [], []
        for path in sorted(map(tuple, paths), key=lambda path: (len(path), path)):
            if not path or path[:-1] not in places:
                raise CrossdraftError(f"A draft tree holds the node {list(path)} without its parent; add it.")
            places[path] = len(parents)
            parents.append(places[path[:-1]])
            ranks.append(path[-1])
        return cls(tuple(parents), tuple(ranks))

    @classmethod
    def chain_with_siblings(cls, depth: int, width: int) -> "Shape":
        """A chain of best guesses, and beside each of them the next best: what acceptance by rank is measured with.

        >>> Shape.comb(2, 2).paths
        ((0,), (1,), (0, 0), (0, 1))
        """
        return cls.from_paths([(*(0,) * level, rank) for level in range(depth) for rank in range(width)])

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """[n] the ranks from the root down to each node."""
        paths: list[tuple[int, ...]] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            paths.append((*(paths[parent] if parent != ROOT else ()), rank))
        return tuple(paths)

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return max(map(len, self.paths), default=0)

    @cached_property
    def families(self) -> tuple[dict[int, tuple[int, ...]], ...]:
        """For each level, the nodes that have children (`-1` = the root) and these children, the lowest rank first."""
        levels: list[dict[int, tuple[int, ...]]] = [{} for _ in range(self.depth)]
        for node in sorted(range(len(self)), key=lambda node: self.ranks[node]):
            parent, level = self.parents[node], levels[len(self.paths[node]) - 1]
            level[parent] = (*level.get(parent, ()), node)
        return tuple(levels)

    def first(self, count: int) -> "Shape":
        """The shape of the first `count` nodes."""
        return Shape(self.parents[:count], self.ranks[:count])
