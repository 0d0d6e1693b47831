"""Measured acceptance by depth and rank, from which static trees are made, and shapes to measure it with."""

import json
from collections.abc import Sequence
from pathlib import Path

from crossdraft.drafters.trees.static import RankCounts, Shape
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path


class MeasuredRanks(RankCounts):
    """Counts that grow with each verified tree."""

    def observe(self, tree: DraftTree, path: Sequence[int], ranks: Sequence[int] = ()) -> None:
        """Count a verified tree whose `path` was accepted; `ranks` [n] if they are not the order of siblings."""
        for depth, (parent, taken) in enumerate(zip((ROOT, *path), (*path, None), strict=True)):
            for at, child in enumerate(tree.children(parent)):
                rank = ranks[child] if ranks else at
                self._make_room(depth, rank)
                self.offered[depth][rank] += 1
                self.accepted[depth][rank] += child == taken

    def save(self, path: Path) -> None:
        """Write the counts as JSON."""
        with atomic_path(path) as temporary:
            counts = {"offered": self.offered, "accepted": self.accepted}
            temporary.write_text(json.dumps(counts) + "\n", encoding="utf-8")

    def _make_room(self, depth: int, rank: int) -> None:
        for counts in (self.offered, self.accepted):
            counts += [[] for _ in range(depth + 1 - len(counts))]
            counts[depth] += [0] * (rank + 1 - len(counts[depth]))


def shape_of(paths: Sequence[Sequence[int]]) -> Shape:
    """Build a shape from one path of ranks per node, as Medusa's published trees are written; any order.

    >>> shape_of([[0], [0, 0], [1], [0, 1]])
    Shape(parents=(-1, -1, 0, 0), ranks=(0, 1, 0, 1))
    """
    nodes: dict[tuple[int, ...], int] = {(): ROOT}
    parents, ranks = [], []
    for path in sorted(map(tuple, paths), key=lambda path: (len(path), path)):
        if not path or path[:-1] not in nodes:
            raise CrossdraftError(f"A draft tree holds the node {list(path)} without its parent; add it.")
        nodes[path] = len(parents)
        parents.append(nodes[path[:-1]])
        ranks.append(path[-1])
    return Shape(tuple(parents), tuple(ranks))
