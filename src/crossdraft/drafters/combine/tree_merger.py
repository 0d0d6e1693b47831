"""Merge draft trees: several drafters' trees as one, nodes taken best first.

At a node that several drafters share, the probability of a token is the mean of theirs, weighted by how often each was
right where they disagreed (an online mixture of experts). So where two are sure of different tokens, the better one's
token is followed first, and the other's is a branch. Where only one drafter proposes anything, its probabilities count
whole.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from crossdraft.engine.drafter import Budget, Draft
from crossdraft.engine.tree import ROOT, DraftTree

DEFAULT_PROB = 0.7  # of a node whose drafter gives no estimate, given its parent
DECAY = 0.98  # weight that an earlier case keeps when one more has come


@dataclass
class DrafterWeight:
    """Statistics of a drafter's predictions.

    Args:
        expected, right: over nodes that were reached: the probability of its likeliest token, and whether that came.
        wins: how often its token came where the others' likeliest was another.
    """

    expected: float = 4.0
    right: float = 4.0
    wins: float = 1.0

    @property
    def calibration(self) -> float:
        """Ratio of observed to predicted acceptance, clipped to [0.05, 1.2]; multiplies the drafter's probabilities."""
        return min(1.2, max(0.05, self.right / self.expected))


def default_probs(tree: DraftTree) -> tuple[float, ...]:
    """A path probability for every node of a drafter that gives no probabilities."""
    return tuple(DEFAULT_PROB**depth for depth in tree.depths)


def conditional(draft: Draft, calibration: float = 1.0) -> list[float]:
    """[n] probability of every node given its parent, calibrated; siblings sum to 1 at most."""
    tree = draft.tree
    path_probs = draft.path_probs or default_probs(tree)
    probs = []
    for node, parent in enumerate(tree.parents):
        above = 1.0 if parent == ROOT else path_probs[parent]
        probs.append(min(1.0, calibration * path_probs[node] / above) if above > 0 else 0.0)
    for parent in {*tree.parents}:
        children = tree.children(parent)
        total = sum(probs[child] for child in children)
        for child in children:
            probs[child] /= max(1.0, total)
    return probs


def merged(trees: Sequence[DraftTree], probs: Sequence[Sequence[float]], weights: Sequence[float], nodes: int) -> Draft:
    """The likeliest `nodes` nodes of all trees as one.

    Args:
        trees: one tree of each drafter.
        probs: probability of each tree's nodes, given their parents; see `conditional`.
        weights: positive weight of each drafter.
        nodes: most nodes.

    >>> draft = merged([DraftTree.chain([1, 2]), DraftTree.chain([1, 3])], [[0.9, 0.8], [0.5, 0.8]], [3, 1], 3)
    >>> draft.tree.tokens, draft.tree.parents
    ((1, 2, 3), (-1, 0, 0))
    """
    tokens: list[int] = []
    parents: list[int] = []
    path_probs: list[float] = []
    # What may be added next: minus its path probability, its depth, a number that breaks ties, token, parent, and the
    # node it is in each drafter's tree that has it.
    leaves: list[tuple[float, int, int, int, int, Mapping[int, int]]] = []
    offered = 0

    def offer(parent: int, prob: float, depth: int, where: Mapping[int, int]) -> None:
        nonlocal offered
        found: dict[int, dict[int, int]] = {}  # token -> drafter -> node
        proposing = {i: children for i, at in where.items() if (children := trees[i].children(at))}
        total = sum(weights[i] for i in proposing)
        for i, children in proposing.items():
            for child in children:
                found.setdefault(trees[i].tokens[child], {}).setdefault(i, child)
        for token, below in found.items():
            share = sum(weights[i] * probs[i][child] for i, child in below.items()) / total
            offered += 1
            heapq.heappush(leaves, (-prob * share, depth, offered, token, parent, below))

    offer(ROOT, 1.0, 1, dict.fromkeys(range(len(trees)), ROOT))
    while leaves and len(tokens) < nodes:
        rank, depth, _, token, parent, below = heapq.heappop(leaves)
        tokens.append(token)
        parents.append(parent)
        path_probs.append(-rank)
        offer(len(tokens) - 1, -rank, depth + 1, below)
    return Draft(DraftTree(tuple(tokens), tuple(parents)), tuple(path_probs))


def learn(
    weights: Sequence[DrafterWeight], trees: Sequence[DraftTree], probs: Sequence[Sequence[float]], text: Sequence[int]
) -> None:
    """Learn from `text`, which followed: at every node along it, update the drafters that proposed anything there."""
    at: dict[int, int] = dict.fromkeys(range(len(trees)), ROOT)
    for token in text:
        likeliest: dict[int, int] = {}
        for i, node in at.items():
            children = trees[i].children(node)
            if children:
                likeliest[i] = max(children, key=lambda child, i=i: probs[i][child])
        words = {i: trees[i].tokens[child] for i, child in likeliest.items()}
        for i, word in words.items():
            one = weights[i]
            one.expected = one.expected * DECAY + probs[i][likeliest[i]]
            one.right = one.right * DECAY + (word == token)
        if len(set(words.values())) > 1 and token in words.values():
            for i, word in words.items():
                weights[i].wins = weights[i].wins * DECAY + (word == token)
        at = {
            i: child for i, node in at.items() for child in trees[i].children(node) if trees[i].tokens[child] == token
        }


class TreeMerger:
    """Merges several drafters' drafts, weighted by how often each drafter was right so far.

    Args:
        count: number of drafters.
    """

    def __init__(self, count: int) -> None:
        self.weights = [DrafterWeight() for _ in range(count)]

    def share(self, budget: Budget, i: int, *, greedy: bool) -> Budget:
        """Budget of drafter `i`: the whole tree in greedy answers; an equal part, set before any draw, in sampled."""
        budget = budget if i == 0 else replace(budget, on_token=None)
        if greedy:
            return budget
        part, rest = divmod(budget.nodes, len(self.weights))
        return replace(budget, nodes=part + (i < rest))

    def merge(self, drafts: Sequence[Draft], nodes: int, *, greedy: bool) -> Draft:
        """Merge drafts to one of at most `nodes` nodes."""
        trees = [draft.tree for draft in drafts]
        if not greedy:
            return Draft(reduce(DraftTree.union, trees))
        return merged(trees, self._probs(drafts), [weight.wins for weight in self.weights], nodes)

    def learn(self, drafts: Sequence[Draft], text: Sequence[int]) -> None:
        """Learn from `text`, which followed where these drafts began; their tokens were chosen, not drawn."""
        learn(self.weights, [draft.tree for draft in drafts], self._probs(drafts), text)

    def _probs(self, drafts: Sequence[Draft]) -> list[list[float]]:
        pairs = zip(drafts, self.weights, strict=True)
        return [conditional(draft, weight.calibration) for draft, weight in pairs]
