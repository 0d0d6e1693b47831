"""Static trees: shapes fixed beforehand from measured acceptance, and filled with a drafter's tokens.

Measure with a shape that offers every rank everywhere: a dynamic tree offers a second child only where the drafter is
unsure of the first, so its second children look better than they are.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TreeBuilder
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json

PRIOR = 4  # imagined rejections of each rank: one lucky acceptance must not shape a tree


@dataclass(frozen=True)
class Shape:
    """The shape of a draft tree without its tokens: parents and ranks of nodes, parents first.

    Args:
        parents: [n] index of each node's parent, `-1` for a child of the root; `parents[i] < i`.
        ranks: [n] rank of a node among its siblings: 0 = the likeliest. Siblings have different ranks.

    Raises:
        CrossdraftError: lengths differ, a parent does not precede its child, or siblings share a rank.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        ordered = all(ROOT <= parent < node for node, parent in enumerate(self.parents))
        distinct = set(zip(self.parents, self.ranks, strict=False))
        if len(self.parents) != len(self.ranks) or not ordered or min(self.ranks, default=0) < 0:
            raise CrossdraftError(
                "The shape of a draft tree needs a rank of 0 or more per node, and parents before their children; got "
                f"parents {self.parents} and ranks {self.ranks}."
            )
        if len(distinct) != len(self.parents):
            raise CrossdraftError(f"Siblings of a draft tree share a rank: parents {self.parents}, ranks {self.ranks}.")

    def __len__(self) -> int:
        return len(self.parents)

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
        """The nodes of each level that have children (`-1` = the root), and these children, the lowest rank first."""
        levels: list[dict[int, tuple[int, ...]]] = [{} for _ in range(self.depth)]
        for node in sorted(range(len(self)), key=lambda node: self.ranks[node]):
            parent, level = self.parents[node], levels[len(self.paths[node]) - 1]
            level[parent] = (*level.get(parent, ()), node)
        return tuple(levels)

    def first(self, count: int) -> "Shape":
        """The shape of the first `count` nodes."""
        return Shape(self.parents[:count], self.ranks[:count])


@dataclass
class RankCounts:
    """Acceptance by depth (0 = the root's children) and rank, counted over nodes whose parent was accepted."""

    offered: list[list[int]] = field(default_factory=list)
    accepted: list[list[int]] = field(default_factory=list)

    def by_rank(self) -> tuple[float, ...]:
        """[rank] share accepted, over all depths."""
        widest = max(map(len, self.offered), default=0)
        totals = (
            [sum(level[rank] for level in counts if rank < len(level)) for rank in range(widest)]
            for counts in (self.accepted, self.offered)
        )
        return tuple(got / (tried + PRIOR) for got, tried in zip(*totals, strict=True))

    def by_depth(self) -> list[list[float]]:
        """[depth][rank] share accepted, blended with the share over all depths where little was offered."""
        usual = self.by_rank()
        return [
            [
                (got + PRIOR * share) / (tried + PRIOR)
                for got, tried, share in zip(accepted, offered, usual, strict=False)
            ]
            for accepted, offered in zip(self.accepted, self.offered, strict=True)
        ]

    @classmethod
    def load(cls, path: Path) -> "RankCounts":
        """Read measured counts: JSON.

        Raises:
            CrossdraftError: the file is missing, or holds something else.
        """
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CrossdraftError(f"{path} cannot be read as measured acceptance: {error}.") from error
        offered, accepted = (_table(found, name) for name in ("offered", "accepted"))
        if offered is None or accepted is None or not _fits(offered, accepted):
            raise CrossdraftError(
                f"{path} holds no measured acceptance: it needs 'offered' and 'accepted', lists of lists of counts by "
                "depth and rank, no more accepted than offered; measure it again."
            )
        return cls(offered, accepted)


def _table(found: object, name: str) -> list[list[int]] | None:
    """The table called `name`, or `None` if it is no table of whole numbers."""
    table = found.get(name) if isinstance(found, dict) else None
    if not isinstance(table, list) or not all(isinstance(level, list) for level in table):
        return None
    return table if all(type(count) is int for level in table for count in level) else None


def _fits(offered: list[list[int]], accepted: list[list[int]]) -> bool:
    """True if both tables have one form and no accepted count exceeds the offered one."""
    same = [len(level) for level in offered] == [len(level) for level in accepted]
    levels = zip(accepted, offered, strict=False)
    return same and all(0 <= got <= tried for pair in levels for got, tried in zip(*pair, strict=True))


def greedy_shape(accuracies: Sequence[Sequence[float]], nodes: int) -> Shape:
    """Medusa's search for a static tree (Cai et al. 2024, §2.3.3): add the node that adds most, again and again.

    A node adds the probability that its whole path is accepted, the product of the accuracies along it, never more than
    its parent adds. So the best next node is always a child of a taken node, and taking it is optimal for every size:
    the first k nodes are the best tree of k.

    Args:
        accuracies: [depth][rank] how often the drafter's token of that rank is accepted at that depth, if everything
            before it is.
        nodes: number of nodes; fewer if no other can be accepted.
    """
    parents: list[int] = []
    ranks: list[int] = []
    candidates: list[tuple[float, tuple[int, ...], int]] = []

    def offer(path: tuple[int, ...], parent: int, path_prob: float) -> None:
        for rank, accuracy in enumerate(accuracies[len(path)] if len(path) < len(accuracies) else ()):
            if path_prob * accuracy > 0:
                heapq.heappush(candidates, (-path_prob * accuracy, (*path, rank), parent))

    offer((), ROOT, 1.0)
    while candidates and len(parents) < nodes:
        negative, path, parent = heapq.heappop(candidates)
        parents.append(parent)
        ranks.append(path[-1])
        offer(path, len(parents) - 1, -negative)
    return Shape(tuple(parents), tuple(ranks))


def fill(shape: Shape, expand: ProbsFn, choose: SelectFn, budget: Budget) -> BuiltTree:
    """Fill a shape with a drafter's tokens, level by level; only its first nodes if it is larger than the budget.

    Nodes after one that is too unlikely, or that ends the answer, are left out. Drawn siblings stand in the order of
    drawing, whatever their ranks: skipping a draw would falsify the next draw's distribution.
    """
    shape = shape.first(budget.nodes)
    builder = TreeBuilder(budget.on_token)
    built = {ROOT: ROOT}  # shape node -> tree node
    for families in shape.families:
        alive = [
            parent
            for parent in families
            if parent in built and builder.path_prob_of(built[parent]) >= budget.min_confidence
        ]
        if not alive or budget.stopped:
            break
        rows = expand(builder.tree(), [built[parent] for parent in alive])
        for parent, probs in zip(alive, rows, strict=True):
            family = families[parent]
            ranks = range(len(family)) if choose.drawn else [shape.ranks[node] for node in family]
            found = choose(probs, ranks[-1] + 1)
            ranks = [rank for rank in ranks if rank < len(found)]
            tokens = [found[rank] for rank in ranks]
            children = builder.add(built[parent], probs, tokens, drawn=choose.drawn, ranks=ranks)
            built.update(zip(family, children, strict=False))
    return builder.whole() if choose.drawn else builder.best(len(builder))
