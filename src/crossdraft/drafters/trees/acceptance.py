"""Measured acceptance: how often a drafter's guess of each rank is the accepted one. Static trees are chosen by it.

Measure with a shape that offers every rank everywhere (`Shape.chain_with_siblings`): a dynamic tree offers a second
guess only where the drafter doubts the first, so its second guesses look better than they are.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

DOUBT = 4  # imagined refusals of a guess of each rank: one lucky hit must not shape a tree


@dataclass
class RankCounts:
    """Counts by depth (0 = the root's children) and rank, over nodes whose parent was accepted."""

    offered: list[list[int]] = field(default_factory=list)
    accepted: list[list[int]] = field(default_factory=list)

    def observe(self, tree: DraftTree, path: Sequence[int], ranks: Sequence[int] = ()) -> None:
        """A tree was verified and `path` kept; `ranks` [n] if they are not simply the places among siblings."""
        for depth, (parent, taken) in enumerate(zip((ROOT, *path), (*path, None), strict=True)):
            for place, child in enumerate(tree.children(parent)):
                rank = ranks[child] if ranks else place
                self._make_room(depth, rank)
                self.offered[depth][rank] += 1
                self.accepted[depth][rank] += child == taken

    def by_rank(self) -> tuple[float, ...]:
        """[rank] share accepted, all depths together."""
        widest = max(map(len, self.offered), default=0)
        totals = (
            [sum(level[rank] for level in counts if rank < len(level)) for rank in range(widest)]
            for counts in (self.accepted, self.offered)
        )
        return tuple(got / (tried + DOUBT) for got, tried in zip(*totals, strict=True))

    def by_depth(self) -> list[list[float]]:
        """[depth][rank] share accepted; where little was offered, that of all depths weighs in."""
        usual = self.by_rank()
        return [
            [
                (got + DOUBT * share) / (tried + DOUBT)
                for got, tried, share in zip(accepted, offered, usual, strict=False)
            ]
            for accepted, offered in zip(self.accepted, self.offered, strict=True)
        ]

    def save(self, path: Path) -> None:
        """Write the counts as JSON."""
        with atomic_path(path) as temporary:
            counts = {"offered": self.offered, "accepted": self.accepted}
            temporary.write_text(json.dumps(counts) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "RankCounts":
        """Read what `save` wrote.

        Raises:
            CrossdraftError: the file is missing, or holds something else.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CrossdraftError(f"{path} cannot be read as measured acceptance: {error}.") from error
        offered, accepted = (_table(found, name) for name in ("offered", "accepted"))
        if offered is None or accepted is None or not _fits(offered, accepted):
            raise CrossdraftError(
                f"{path} holds no measured acceptance: it needs 'offered' and 'accepted', lists of lists of counts by "
                "depth and rank, no more accepted than offered; measure it again."
            )
        return cls(offered, accepted)

    def _make_room(self, depth: int, rank: int) -> None:
        for counts in (self.offered, self.accepted):
            counts += [[] for _ in range(depth + 1 - len(counts))]
            counts[depth] += [0] * (rank + 1 - len(counts[depth]))


def _table(found: object, name: str) -> list[list[int]] | None:
    """The table of that name, if it is one."""
    table = found.get(name) if isinstance(found, dict) else None
    if not isinstance(table, list) or not all(isinstance(level, list) for level in table):
        return None
    return table if all(type(count) is int for level in table for count in level) else None


def _fits(offered: list[list[int]], accepted: list[list[int]]) -> bool:
    """True if both have one form and no count exceeds what was offered."""
    same = [len(level) for level in offered] == [len(level) for level in accepted]
    levels = zip(accepted, offered, strict=False)
    return same and all(0 <= got <= tried for pair in levels for got, tried in zip(*pair, strict=True))
