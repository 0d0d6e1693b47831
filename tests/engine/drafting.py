"""Small languages, and ways to draft trees for them, with chances that can be drawn or enumerated."""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from crossdraft.engine.accept import Chance
from crossdraft.engine.tree import ROOT, DraftTree

Prefix = tuple[int, ...]


class Language:
    """A distribution over V tokens after every prefix, fixed by a seed; some tokens have probability 0."""

    def __init__(self, vocabulary: int, seed: int, sharpness: float = 1.0, zeros: int = 0) -> None:
        self.vocabulary, self.seed, self.sharpness, self.zeros = vocabulary, seed, sharpness, zeros

    @functools.cache  # noqa: B019 - the few languages live as long as the tests
    def __call__(self, prefix: Prefix) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, prefix)) % 2**31)
        logits = self.sharpness * torch.randn(self.vocabulary, dtype=torch.float64, generator=generator)
        logits[torch.randperm(self.vocabulary, generator=generator)[: self.zeros]] = -math.inf
        return logits.softmax(-1)


class PartialTree:
    """A draft tree while it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.dists: list[Tensor] = []
        self.drawn_from: list[int] = []

    def add(self, parent: int, token: int, row: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.drawn_from.append(row)
        return len(self.tokens) - 1

    def prefix(self, node: int) -> Prefix:
        return () if node == ROOT else (*self.prefix(self.parents[node]), self.tokens[node])

    def tree(self) -> DraftTree:
        dists = torch.stack(self.dists) if self.dists else None
        return DraftTree(tuple(self.tokens), tuple(self.parents), dists, tuple(self.drawn_from))


# -- ways of drafting: each grows the children of one node, with chances from `chance` ---------------------------------

Way = Callable[[PartialTree, int, Chance], list[int]]


def sampled(q: Language, k: int) -> Way:
    """k children from q without replacement."""

    def grow(part: PartialTree, parent: int, chance: Chance) -> list[int]:
        dist = q(part.prefix(parent))
        part.dists.append(dist)
        left, nodes = dist.clone(), []
        for _ in range(min(k, int((dist > 0).sum()))):
            token = chance.draw(left)
            left[token] = 0
            nodes.append(part.add(parent, token, len(part.dists) - 1))
        return nodes

    return grow


def certain(q: Language, k: int) -> Way:
    """The k most likely tokens of q, as point masses."""

    def grow(part: PartialTree, parent: int, chance: Chance) -> list[int]:
        likely = q(part.prefix(parent)).topk(k).indices.tolist()
        return [part.add(parent, token, -1) for token in likely]

    return grow


def with_replacement(q: Language, k: int) -> Way:
    """k children from q with replacement; equal ones stand twice."""

    def grow(part: PartialTree, parent: int, chance: Chance) -> list[int]:
        dist = q(part.prefix(parent))
        part.dists.append(dist)
        return [part.add(parent, chance.draw(dist), len(part.dists) - 1) for _ in range(k)]

    return grow


def mixed(*ways: Way) -> Way:
    """The children of all ways under one parent, equal ones among them."""

    def grow(part: PartialTree, parent: int, chance: Chance) -> list[int]:
        return [node for way in ways for node in way(part, parent, chance)]

    return grow


Grow = Callable[[Chance], DraftTree]


def tree_of(*levels: Way) -> Grow:
    """A drafter: the first way grows the root's children, the next one theirs, and so on."""

    def grow(chance: Chance) -> DraftTree:
        part = PartialTree()
        front = [ROOT]
        for way in levels:
            front = [child for parent in front for child in way(part, parent, chance)]
        return part.tree()

    return grow


def union_of(*drafters: Grow) -> Grow:
    """Trees of several drafters, drawn one after the other and merged into one trie."""
    return lambda chance: functools.reduce(DraftTree.union, [grow(chance) for grow in drafters])


def probs_of(target: Language, tree: DraftTree) -> Tensor:
    """[1 + n, V] the target's distributions after the root and every node."""
    return torch.stack([target(tuple(tree.path_tokens(node))) for node in range(ROOT, len(tree))])
