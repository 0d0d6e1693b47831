"""A draft tree while it is built, and the two callbacks that every builder function takes.

`ProbsFn` gives a drafter's distributions after nodes of the tree so far, `SelectFn` takes children from one of them.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from crossdraft.engine.sampling import sample_children
from crossdraft.engine.tree import ROOT, DraftTree


class ProbsFn(Protocol):
    """A drafter's distributions after nodes of the tree so far."""

    def __call__(self, tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """[m, V] the distribution after each of the m nodes (`-1` = the root); 0 where nothing follows."""
        ...


class SelectFn(Protocol):
    """A rule that takes children from a distribution."""

    @property
    def drawn(self) -> bool:
        """True if children are drawn: a drawn child must never be dropped for its value."""
        ...

    def __call__(self, probs: Tensor, count: int) -> list[int]:
        """Take up to `count` tokens of positive probability, in the order in which they must be tried."""
        ...


@dataclass(frozen=True)
class TopK:
    """The most likely tokens: point masses, for greedy answers."""

    drawn: bool = field(default=False, init=False)

    def __call__(self, probs: Tensor, count: int) -> list[int]:
        values, tokens = probs.topk(min(count, len(probs)))
        return [token for token, value in zip(tokens.tolist(), values.tolist(), strict=True) if value > 0]


@dataclass(frozen=True)
class WithoutReplacement:
    """Tokens drawn without replacement, so that siblings differ (Sequoia: Chen et al. 2024), for sampled answers."""

    generator: torch.Generator
    drawn: bool = field(default=True, init=False)

    def __call__(self, probs: Tensor, count: int) -> list[int]:
        return sample_children(probs, count, self.generator).tolist()


@dataclass(frozen=True)
class BuiltTree:
    """A finished tree.

    Args:
        tree: the tree.
        path_probs: [n] the drafter's own probability of the path down to each node.
        ranks: [n] rank of a node among its siblings, by likelihood; of a drawn node, the number of its draw.
    """

    tree: DraftTree
    path_probs: tuple[float, ...]
    ranks: tuple[int, ...]


class TreeBuilder:
    """A tree to which the children of one node at a time are added.

    Args:
        on_token: called with every token of the main path, which follows first children, as it appears.
    """

    def __init__(self, on_token: Callable[[int], None] | None = None) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.ranks: list[int] = []
        self.path_probs: list[float] = []
        self._dists: list[Tensor] = []
        self._drawn_from: list[int] = []
        self._on_token = on_token
        self._main = ROOT

    def __len__(self) -> int:
        return len(self.tokens)

    def path_prob_of(self, node: int) -> float:
        """Probability of the path down to a node; 1 for the root."""
        return 1.0 if node == ROOT else self.path_probs[node]

    def add(
        self,
        parent: int,
        dist: Tensor,
        tokens: Sequence[int],
        *,
        drawn: bool,
        ranks: Sequence[int] = (),
        probs: Sequence[float] = (),
    ) -> list[int]:
        """Add a node's children, taken from `dist` [V]; returns their indexes. `probs` are theirs, if known."""
        first = len(self)
        if not tokens:
            return []
        if drawn:
            self._dists.append(dist)
        above = self.path_prob_of(parent)
        self.tokens += tokens
        self.parents += [parent] * len(tokens)
        self.ranks += ranks or range(len(tokens))
        self.path_probs += [above * prob for prob in probs or dist[list(tokens)].tolist()]
        self._drawn_from += [len(self._dists) - 1 if drawn else -1] * len(tokens)
        if parent == self._main:
            self._main = first
            if self._on_token is not None:
                self._on_token(tokens[0])
        return list(range(first, len(self)))

    def likeliest(self, nodes: Sequence[int], count: int) -> list[int]:
        """The `count` of `nodes` with the highest path probability, best first; of equal ones the earlier first."""
        return sorted(nodes, key=lambda node: -self.path_probs[node])[:count]

    def tree(self) -> DraftTree:
        """The tree so far."""
        dists = torch.stack(self._dists) if self._dists else None
        return DraftTree(tuple(self.tokens), tuple(self.parents), dists, tuple(self._drawn_from))

    def whole(self) -> BuiltTree:
        """The whole tree, in the order in which it was built."""
        return BuiltTree(self.tree(), tuple(self.path_probs), tuple(self.ranks))

    def best(self, count: int) -> BuiltTree:
        """The `count` nodes of the highest path probability, best first. Not for drawn nodes.

        A path is never likelier than its beginning, and of equal nodes the earlier comes first: so they form a tree.
        """
        kept = self.likeliest(range(len(self)), count)
        path_probs, ranks = ([values[node] for node in kept] for values in (self.path_probs, self.ranks))
        return BuiltTree(self.tree().keep(kept), tuple(path_probs), tuple(int(rank) for rank in ranks))


def largest_probs(dist: Tensor, count: int) -> list[float]:
    """The `count` largest probabilities of [V], falling, without zeros."""
    values = dist.topk(min(count, len(dist))).values.tolist()
    return list(itertools.takewhile(lambda value: value > 0, values))
