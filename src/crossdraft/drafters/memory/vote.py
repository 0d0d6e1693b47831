"""A vote on how an answer goes on, among places in earlier answers that look like where it is now.

Every place (a *voter*) says that the text goes on as it did there. Its weight is its chance to be right: it falls
with every token in front of it that differs from ours, the more the nearer that token stands, with age, and with the
distance of its scope. Down the tree, a voter who is contradicted loses most of its weight, but keeps its place unless
others have far more: where one word was put for another, the words behind it are the same again. That is Bayes' rule
for a mixture of experts, each of whom foresees one text.

Nodes are taken best first: the tree of n nodes that is expected to be accepted furthest.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from crossdraft.drafters.memory.store import Scope, Store

CONTEXT = 16  # tokens in front of a place that are compared
MISMATCH = (
    5.0 * 0.5 ** np.arange(CONTEXT)[::-1]
)  # nats that a differing token costs; the last one is the nearest
CONTRADICTED = 0.01  # what is left of a voter's weight where the text goes another way
PRUNE = 0.02  # of the greatest weight: who has less is no voter any more
UNHEARD = 0.05  # the weight of whatever nobody foresees
TRUST = (1.0, 1.0, 0.3)  # in the same clip, the same question, anywhere
HALF_LIFE, OLD = 10, 0.1  # answers in which a voter loses half its weight; what it keeps for ever
GAPS = 2  # as many of the last tokens may be another's in its place
PER_CHAIN, MOST = 16, 64  # voters taken from one chain, and in all
NEWEST = 100  # places that vote whatever stands in front of them: what is being talked about
AHEAD = 48  # the deepest tree
BRANCHES, FAINT = 10, 1e-6  # most children of a node; less likely paths are not drafted


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree, its nodes best first; `reach` is the chance that the text takes the path down to a node."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    reach: tuple[float, ...]


def foresee(store: Store, scope: Scope, context: Sequence[int], nodes: int, faintest: float = FAINT) -> Grown:
    """The best `nodes` nodes behind `context`, which begins with START; none with less reach than `faintest`."""
    places, trust = voters(store, scope, context)
    weights = weigh(store, places, trust, context)
    if len(weights) > MOST:
        best = np.argpartition(-weights, MOST)[:MOST]
        places, weights = places[best], weights[best]
    return grow(store.around(places, 0, min(nodes, AHEAD)), weights, nodes, max(FAINT, faintest))


def voters(
    store: Store, scope: Scope, context: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """[N] places where the last tokens of `context` stood before, or those in front of the last few; their trust."""
    trust: dict[int, float] = {}
    for gap in range(GAPS + 1):
        for length in (2, 1) if gap < 2 else (2,):
            gram = context[max(0, len(context) - gap - length) : len(context) - gap]
            if len(gram) == length:
                for worth, ends in zip(TRUST, store.ends(scope, gram, PER_CHAIN), strict=True):
                    for end in ends:
                        trust.setdefault(end + 1 + gap, worth)
    for place in range(max(1, store.written - NEWEST), store.written + 1):
        trust.setdefault(place, 1.0)
    places = np.fromiter(trust, np.int64, len(trust))
    there = places <= store.written
    return places[there], np.fromiter(trust.values(), np.float64, len(trust))[there]


def weigh(
    store: Store, places: NDArray[np.int64], trust: NDArray[np.float64], context: Sequence[int]
) -> NDArray[np.float64]:
    """[N] weights by what stands in front of the places, by their age, and by what their scopes are worth."""
    known = np.array(context[-CONTEXT:], np.int32)
    differs = store.around(places, len(known), 0) != known
    age = store.answers - store.answer[(places - 1) % store.capacity]
    weights: NDArray[np.float64] = np.exp(-(differs @ MISMATCH[-len(known) :])) * trust
    return weights * (0.5 ** (age / HALF_LIFE) + OLD)


def grow(ahead: NDArray[np.int32], weights: NDArray[np.float64], nodes: int, faintest: float) -> Grown:
    """The best `nodes` nodes of the tree of what the voters foresee.

    Args:
        ahead: [N, d] what followed at each voter's place; a negative token is an end.
        weights: [N].
        nodes: most nodes.
        faintest: least reach of a node.
    """
    tokens: list[int] = []
    parents: list[int] = []
    reach: list[float] = []
    columns = list(ahead.T.copy())
    # What may be added next: minus its reach, a number that breaks ties, token, parent, depth, who votes at the parent,
    # and what they foresee there. Plain tuples: hundreds are compared for a tree.
    leaves: list[
        tuple[float, int, int, int, int, NDArray[np.intp], NDArray[np.float64], NDArray[np.int32]]
    ] = []
    offered = 0

    def offer(
        parent: int, chance: float, depth: int, who: NDArray[np.intp], heard: NDArray[np.float64]
    ) -> None:
        nonlocal offered
        said = columns[depth][who]
        for token, share in ballot(said, heard):
            if chance * share < faintest:
                break  # the others are fainter still
            offered += 1
            heapq.heappush(leaves, (-chance * share, offered, token, parent, depth, who, heard, said))

    if len(weights) and nodes:
        offer(-1, 1.0, 0, np.arange(len(weights)), weights)
    while leaves and len(tokens) < nodes:
        rank, _, token, parent, depth, who, heard, said = heapq.heappop(leaves)
        tokens.append(token)
        parents.append(parent)
        reach.append(-rank)
        if depth + 1 < len(columns) and len(tokens) < nodes:
            heard = np.where(said == token, heard, heard * CONTRADICTED)
            kept = heard > heard.max() * PRUNE
            offer(len(tokens) - 1, -rank, depth + 1, who[kept], heard[kept])
    return Grown(tuple(tokens), tuple(parents), tuple(reach))


def ballot(said: NDArray[np.int32], weights: NDArray[np.float64]) -> list[tuple[int, float]]:
    """The likeliest tokens with their shares of the vote, likeliest first; whoever foresees an end abstains."""
    counted: dict[int, float] = {}
    for token, weight in zip(said.tolist(), weights.tolist(), strict=True):
        counted[token] = counted.get(token, 0.0) + weight
    total = sum(counted.values()) + UNHEARD
    best = sorted(counted.items(), key=itemgetter(1), reverse=True)[:BRANCHES]
    return [(token, weight / total) for token, weight in best if token >= 0]
