"""Draft trees: proposed tokens with parents. A chain is a tree whose parent is the previous node.

    root ─┬─ 0:"a" ─┬─ 1:"car"
          │         └─ 2:"bus"        tokens  = [a, car, bus, the]
          └─ 3:"the"                  parents = [-1, 0, 0, -1]

The root is the last committed token; it is not a node. Nodes are in topological order (a parent comes before its
children) and siblings stand in the order in which an acceptance rule must try them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

ROOT = -1


@dataclass(frozen=True)
class DraftTree:
    """Proposed tokens, each with its parent and with how it was chosen. Lists are taken for tuples.

    Args:
        tokens: [n] token ids.
        parents: [n] index of each node's parent, `-1` for a child of the root; `parents[i] < i`.
        dists: [m, V] distributions that nodes were sampled from, after warping. Exact rejection needs them in
            full: the residual max(0, p - q) cannot be formed from a scalar q. `None` when nothing was sampled.
        drawn_from: [n] row of `dists` a node was drawn from, `-1` for a node that was chosen deterministically
            (a point mass). Siblings with the same row were drawn without replacement, in node order.

    Raises:
        CrossdraftError: lengths differ, a parent does not precede its child, or a row does not exist.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    dists: Tensor | None = None
    drawn_from: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tokens", "parents", "drawn_from"):
            if isinstance(given := getattr(self, name), list):
                object.__setattr__(self, name, tuple(given))
        if not self.drawn_from:
            object.__setattr__(self, "drawn_from", (-1,) * len(self.tokens))
        if not len(self.tokens) == len(self.parents) == len(self.drawn_from):
            raise CrossdraftError(
                f"A draft tree needs one parent and one origin per token, got {len(self.tokens)} tokens, "
                f"{len(self.parents)} parents, {len(self.drawn_from)} origins."
            )
        if any(not ROOT <= parent < node for node, parent in enumerate(self.parents)):
            raise CrossdraftError(f"In a draft tree a parent precedes its children, got parents {self.parents}.")
        rows = 0 if self.dists is None else len(self.dists)
        if any(not -1 <= row < rows for row in self.drawn_from):
            raise CrossdraftError(f"A draft tree node names a distribution that is not there ({rows} given).")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls) -> "DraftTree":
        """The tree without nodes: the target's pass is then plain decoding."""
        return cls((), ())

    @classmethod
    def chain(cls, tokens: Sequence[int], dists: Tensor | None = None) -> "DraftTree":
        """One token after another; `dists` [n, V] if they were sampled, token i from row i."""
        n = len(tokens)
        drawn_from = () if dists is None else tuple(range(n))
        return cls(tuple(tokens), tuple(range(-1, n - 1)), dists, drawn_from)

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> "DraftTree":
        """The trie of several token sequences that all start at the root.

        >>> DraftTree.from_paths([[5, 6], [5, 7], [8]]).parents
        (-1, 0, 0, -1)
        """
        tree = cls.empty()
        for path in paths:
            tree = tree.union(cls.chain(path))
        return tree

    def union(self, other: "DraftTree") -> "DraftTree":
        """Join two trees to one trie; a node that both propose appears once, as the first tree chose it.

        Exact under multi-round rejection: each candidate is tested against the residual that its earlier siblings
        left, whatever drafter it came from.
        """
        if not len(self) or not len(other):
            return self if len(self) else other
        tokens, parents, origins = list(self.tokens), list(self.parents), list(self.drawn_from)
        shift = 0 if self.dists is None else len(self.dists)
        where: dict[tuple[int, int], int] = {}
        for node, key in enumerate(zip(parents, tokens, strict=True)):
            where.setdefault(key, node)
        merged: dict[int, int] = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(other.tokens, other.parents, strict=True)):
            key = (merged[parent], token)
            if key not in where:
                where[key] = len(tokens)
                tokens.append(token)
                parents.append(merged[parent])
                row = other.drawn_from[node]
                origins.append(row if row < 0 else row + shift)
            merged[node] = where[key]
        present = [dists for dists in (self.dists, other.dists) if dists is not None]
        return DraftTree(tuple(tokens), tuple(parents), torch.cat(present) if present else None, tuple(origins))

    def first(self, count: int) -> "DraftTree":
        """The tree of the first `count` nodes; topological order makes it a tree again."""
        return replace(
            self, tokens=self.tokens[:count], parents=self.parents[:count], drawn_from=self.drawn_from[:count]
        )

    def keep(self, nodes: Sequence[int]) -> "DraftTree":
        """The tree of these nodes alone, numbered in their order; parents stand among them, before their children.

        Of drawn nodes only the youngest siblings may go, for their order and not for their value; see `rules`.

        Raises:
            CrossdraftError: a node comes without its parent, before it, or twice.
        """
        kept = {ROOT: ROOT}
        for index, node in enumerate(nodes):
            if self.parents[node] not in kept or node in kept:
                raise CrossdraftError(
                    f"Node {node} of a draft tree cannot be kept at index {index}: once each, and after its parent."
                )
            kept[node] = index
        tokens, parents, origins = (
            tuple(values[node] for node in nodes) for values in (self.tokens, self.parents, self.drawn_from)
        )
        moved = tuple(kept[parent] for parent in parents)
        return replace(self, tokens=tokens, parents=moved, drawn_from=origins)

    def children(self, node: int) -> list[int]:
        """Children of a node (`-1` = the root) in the order in which they must be tried."""
        return self._children[node + 1]

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that these tokens lead through from the root, as far as the tree goes."""
        path: list[int] = []
        for token in tokens:
            below = self.children(path[-1] if path else ROOT)
            child = next((child for child in below if self.tokens[child] == token), None)
            if child is None:
                break
            path.append(child)
        return path

    @property
    def main_path(self) -> list[int]:
        """The path of first children: what the drafter would say if it had but one text."""
        path: list[int] = []
        while below := self.children(path[-1] if path else ROOT):
            path.append(below[0])
        return path

    @property
    def main_path_tokens(self) -> tuple[int, ...]:
        """Tokens along `main_path`."""
        return tuple(self.tokens[node] for node in self.main_path)

    @cached_property
    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        return children

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance from the root, 1 for its children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Length of the longest path; 0 for the empty tree."""
        return max(self.depths, default=0)

    @cached_property
    def is_chain(self) -> bool:
        """True if every node is the only child of the one before it."""
        return self.parents == tuple(range(-1, len(self) - 1))

    @cached_property
    def visible(self) -> Tensor:
        """[n, n] bool, True where node i may attend to node j: j is i or an ancestor of i."""
        n = len(self)
        if self.is_chain:
            return torch.ones(n, n, dtype=torch.bool).tril_()
        step = torch.eye(n + 1)  # the root's index is 0, so that every node has a parent
        step[torch.arange(1, n + 1), torch.tensor(self.parents) + 1] = 1
        for _ in range((self.depth - 1).bit_length()):  # twice as many steps up each time
            step = (step @ step).clamp_max_(1)
        return step[1:, 1:] > 0

    def path(self, node: int) -> list[int]:
        """Nodes from a child of the root down to `node`; empty for the root."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """Tokens along `path(node)`."""
        return [self.tokens[step] for step in self.path(node)]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of leading tokens that two sequences have in common."""
    if left == right:
        return len(left)
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))
