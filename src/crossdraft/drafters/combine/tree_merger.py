"""Several drafters' trees as one tree with one opinion.

At a place where several drafters foresee something, the chance of a token is the mean of theirs, weighted by how often
each has proved right where they disagreed. So two that are sure of different words do not both get their way: what
the better one foresees is followed first, and the other's word is a branch. Where only one has an opinion, it counts
whole. Nodes are taken best first.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from crossdraft.engine.drafter import Budget, Draft
from crossdraft.engine.tree import ROOT, DraftTree

GUESS = 0.7  # of a node whose drafter gives no estimate, given its parent
FADING = 0.98  # what an earlier case counts for when one more has come


@dataclass
class DrafterWeight:
    """How a drafter has fared.

    Args:
        expected, right: over places that were reached: the chance of its likeliest word, and whether that came.
        wins: how often its word came where the others' likeliest was another.
    """

    expected: float = 4.0
    right: float = 4.0
    wins: float = 1.0

    @property
    def correction(self) -> float:
        """What to multiply its chances with, so that they are neither boastful nor modest."""
        return min(1.2, max(0.05, self.right / self.expected))


def guesses(tree: DraftTree) -> tuple[float, ...]:
    """A chance for every node, where the drafter knows none."""
    return tuple(GUESS**depth for depth in tree.depths)


def conditional(draft: Draft, correction: float = 1.0) -> list[float]:
    """For every node its chance given its parent, by the drafter's estimates, corrected; siblings sum to 1 at most."""
    tree = draft.tree
    given = draft.path_probs or guesses(tree)
    chances = []
    for node, parent in enumerate(tree.parents):
        above = 1.0 if parent == ROOT else given[parent]
        chances.append(min(1.0, correction * given[node] / above) if above > 0 else 0.0)
    for parent in {*tree.parents}:
        children = tree.children(parent)
        total = sum(chances[child] for child in children)
        for child in children:
            chances[child] /= max(1.0, total)
    return chances


def mixed(
    trees: Sequence[DraftTree], chances: Sequence[Sequence[float]], weights: Sequence[float], nodes: int
) -> Draft:
    """The likeliest `nodes` nodes of all trees as one.

    Args:
        trees: of the drafters.
        chances: of their nodes, given their parents; see `conditional`.
        weights: what each drafter's opinion counts for, positive.
        nodes: most nodes.

    >>> draft = mixed([DraftTree.chain([1, 2]), DraftTree.chain([1, 3])], [[0.9, 0.8], [0.5, 0.8]], [3, 1], 3)
    >>> draft.tree.tokens, draft.tree.parents
    ((1, 2, 3), (-1, 0, 0))
    """
    tokens: list[int] = []
    parents: list[int] = []
    path_probs: list[float] = []
    # What may be added next: minus its reach, its depth, a number that breaks ties, token, parent, and the node it is
    # in each drafter's tree that has it.
    leaves: list[tuple[float, int, int, int, int, Mapping[int, int]]] = []
    offered = 0

    def offer(parent: int, chance: float, depth: int, where: Mapping[int, int]) -> None:
        nonlocal offered
        found: dict[int, dict[int, int]] = {}  # token -> drafter -> node
        speaking = {place: children for place, at in where.items() if (children := trees[place].children(at))}
        total = sum(weights[place] for place in speaking)
        for place, children in speaking.items():
            for child in children:
                found.setdefault(trees[place].tokens[child], {}).setdefault(place, child)
        for token, below in found.items():
            share = sum(weights[place] * chances[place][child] for place, child in below.items()) / total
            offered += 1
            heapq.heappush(leaves, (-chance * share, depth, offered, token, parent, below))

    offer(ROOT, 1.0, 1, dict.fromkeys(range(len(trees)), ROOT))
    while leaves and len(tokens) < nodes:
        rank, depth, _, token, parent, below = heapq.heappop(leaves)
        tokens.append(token)
        parents.append(parent)
        path_probs.append(-rank)
        offer(len(tokens) - 1, -rank, depth + 1, below)
    return Draft(DraftTree(tuple(tokens), tuple(parents)), tuple(path_probs))


def learn(
    reputations: Sequence[DrafterWeight],
    trees: Sequence[DraftTree],
    chances: Sequence[Sequence[float]],
    said: Sequence[int],
) -> None:
    """The text went on with `said`: every place along it tells of the drafters that had an opinion there."""
    at: dict[int, int] = dict.fromkeys(range(len(trees)), ROOT)
    for token in said:
        favourite: dict[int, int] = {}
        for place, node in at.items():
            children = trees[place].children(node)
            if children:
                favourite[place] = max(children, key=lambda child, place=place: chances[place][child])
        words = {place: trees[place].tokens[child] for place, child in favourite.items()}
        for place, word in words.items():
            one = reputations[place]
            one.expected = one.expected * FADING + chances[place][favourite[place]]
            one.right = one.right * FADING + (word == token)
        if len(set(words.values())) > 1 and token in words.values():
            for place, word in words.items():
                reputations[place].wins = reputations[place].wins * FADING + (word == token)
        at = {
            place: child
            for place, node in at.items()
            for child in trees[place].children(node)
            if trees[place].tokens[child] == token
        }


class TreeMerger:
    """Several drafters' drafts as one, by what each of them has proved to be worth so far.

    Args:
        count: how many drafters.
    """

    def __init__(self, count: int) -> None:
        self.reputations = [DrafterWeight() for _ in range(count)]

    def share(self, budget: Budget, place: int, *, greedy: bool) -> Budget:
        """Greedy: everybody may fill the tree. Sampled: an equal part each, settled before anything is drawn."""
        budget = budget if place == 0 else replace(budget, on_token=None)
        if greedy:
            return budget
        part, rest = divmod(budget.nodes, len(self.reputations))
        return replace(budget, nodes=part + (place < rest))

    def join(self, drafts: Sequence[Draft], nodes: int, *, greedy: bool) -> Draft:
        """One draft of at most so many nodes; without probes."""
        refusal = next((draft.refusal for draft in drafts if draft.refusal), None)
        trees = [draft.tree for draft in drafts]
        if not greedy:
            return Draft(reduce(DraftTree.union, trees), refusal=refusal)
        weights = [reputation.wins for reputation in self.reputations]
        return replace(mixed(trees, self._chances(drafts), weights, nodes), refusal=refusal)

    def learn(self, drafts: Sequence[Draft], said: Sequence[int]) -> None:
        """The text went on with `said` behind where these drafts, chosen and not drawn, began."""
        learn(self.reputations, [draft.tree for draft in drafts], self._chances(drafts), said)

    def _chances(self, drafts: Sequence[Draft]) -> list[list[float]]:
        pairs = zip(drafts, self.reputations, strict=True)
        return [conditional(draft, reputation.correction) for draft, reputation in pairs]
