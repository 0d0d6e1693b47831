"""The draft tree that voters make: the n nodes that are expected to be accepted furthest, best first.

Down the tree, a voter who is contradicted loses most of its weight, but keeps its place unless others have far more:
where one word was put for another, the words behind it are the same again. That is Bayes' rule for a mixture of
experts, each of whom foresees one text.

Plain lists and tuples throughout: most nodes have a handful of voters, for whom a numpy call takes longer than a loop.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

CONTRADICTED = 0.01  # what is left of a voter's weight where the text goes another way
PRUNE = 0.02  # of the greatest weight: who has less is no voter any more
UNHEARD = 0.05  # the weight of whatever nobody foresees
BRANCHES = 10  # most children of a node

Voter = tuple[float, int]  # weight, row of what it foresees
Crowd = list[Voter]  # who votes on one node's children, heaviest first


@dataclass(frozen=True, slots=True)
class BuiltTree:
    """A tree, its nodes best first; `path_probs` is the chance that the text takes the path down to a node."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path_probs: tuple[float, ...]


def grow(ahead: NDArray[np.int32], weights: NDArray[np.float64], nodes: int, faintest: float) -> BuiltTree:
    """The best `nodes` nodes of the tree of what the voters foresee.

    Args:
        ahead: [N, d] what followed at each voter's place; a negative token is an end.
        weights: [N].
        nodes: most nodes.
        faintest: least reach of a node.
    """
    tokens: list[int] = []
    parents: list[int] = []
    path_probs: list[float] = []
    columns: list[list[int]] = []  # of `ahead`, as far down as the tree goes
    # What may be added next: minus its reach, a number that breaks ties, token, parent, depth, its camp and the crowd
    # that the camp is part of.
    leaves: list[tuple[float, int, int, int, int, Crowd, Crowd]] = []
    crowd = sorted(zip(weights.tolist(), range(len(weights)), strict=True), reverse=True)
    parent, chance, depth, offered = -1, 1.0, 0, 0
    while crowd and len(tokens) < nodes:
        if depth < ahead.shape[1]:
            if depth == len(columns):
                columns.append(ahead[:, depth].tolist())
            for token, share, camp in ballot(crowd, columns[depth]):
                if chance * share < faintest:
                    break  # the others are fainter still
                offered += 1
                heapq.heappush(leaves, (-chance * share, offered, token, parent, depth, camp, crowd))
        if not leaves:
            break
        rank, _, token, above, depth, camp, crowd = heapq.heappop(leaves)
        parent, chance = len(tokens), -rank
        tokens.append(token)
        parents.append(above)
        path_probs.append(chance)
        crowd = persuaded(crowd, camp, columns[depth])
        depth += 1
    return BuiltTree(tuple(tokens), tuple(parents), tuple(path_probs))


def ballot(crowd: Crowd, column: Sequence[int]) -> list[tuple[int, float, Crowd]]:
    """The likeliest tokens, likeliest first: (token, share of the vote, camp of those who foresee it).

    `column[row]` is what that voter foresees; whoever foresees an end abstains.
    """
    if len(crowd) == 1:  # as most are
        weight, row = crowd[0]
        return [(column[row], weight / (weight + UNHEARD), crowd)] if column[row] >= 0 else []
    camps: dict[int, Crowd] = {}
    counted: dict[int, float] = {}
    for voter in crowd:
        weight, row = voter
        token = column[row]
        if token in camps:
            camps[token].append(voter)
            counted[token] += weight
        else:
            camps[token] = [voter]
            counted[token] = weight
    total = sum(counted.values()) + UNHEARD
    best = sorted(counted.items(), key=itemgetter(1), reverse=True)[:BRANCHES]
    return [(token, weight / total, camps[token]) for token, weight in best if token >= 0]


def persuaded(crowd: Crowd, camp: Crowd, column: Sequence[int]) -> Crowd:
    """The crowd behind the token of one camp: the others lose weight, and whoever has too little is dropped."""
    if len(camp) == len(crowd):
        said, doubted = None, 0.0
    else:
        said, doubted = column[camp[0][1]], crowd[0][0] * CONTRADICTED
    # If the heaviest is of the camp itself, then the camp's weight counts, which is greater than `doubted`.
    least = max(camp[0][0], doubted) * PRUNE
    stay = [voter for voter in camp if voter[0] > least] if camp[-1][0] <= least else camp
    if doubted <= least:
        return stay
    doubters: Crowd = []
    for weight, row in crowd:
        if weight * CONTRADICTED <= least:
            break  # the others are lighter still
        if column[row] != said:
            doubters.append((weight * CONTRADICTED, row))
    return sorted(stay + doubters, reverse=True) if doubters else stay
