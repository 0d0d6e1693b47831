"""A vote on how an answer goes on, among places in earlier answers that look like where it is now.

Every place (a *voter*) says that the text goes on as it did there. Its weight is its chance to be right: it falls
with every token in front of it that differs from ours, the more the nearer that token stands, with age, and with the
distance of its scope. Down the tree, a voter who is contradicted loses most of its weight, but not its place: where
one word was put for another, the words behind it are the same again. That is Bayes' rule for a mixture of experts,
each of whom foresees one text. Where hardly anybody is left who foresaw the path, the store is asked again.

Nodes are taken best first: the tree of n nodes that is expected to be accepted furthest.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossdraft.drafters.memory.store import Scope, Store

CONTEXT = 16  # tokens in front of a place that are compared
MISMATCH = (
    5.0 * 0.5 ** np.arange(CONTEXT)[::-1]
)  # nats that a differing token costs; the last one is the nearest
CONTRADICTED = 0.01  # what is left of a voter's weight where the text goes another way
PRUNE = 1e-4  # of the greatest weight: who has less is no voter any more
TRUST = (1.0, 1.0, 0.3)  # in the same clip, the same question, anywhere
HALF_LIFE, OLD = 10, 0.1  # answers in which a voter loses half its weight; what it keeps for ever
GAPS = 3  # as many of the last tokens may be another's in its place
PER_CHAIN, MOST = 32, 160  # voters taken from one chain, and in all
NEWEST = 100  # places that vote whatever stands in front of them: what is being talked about
FEW, RECALLS = 4, 8  # with fewer voters who foresaw the path the store is asked again, so many times
UNHEARD = 0.05  # the weight of whatever nobody foresees
BRANCHES, FAINT = 10, 1e-6  # most children of a node; less likely paths are not drafted


@dataclass(frozen=True, slots=True)
class Voters:
    """[N] places in the store, what their scopes are worth, and the weights of their votes."""

    places: NDArray[np.int64]
    trust: NDArray[np.float64]
    weights: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree, its nodes best first; `reach` is the chance that the text takes the path down to a node."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    reach: tuple[float, ...]


# A node that may be added next: minus its reach, a number that breaks ties, token, parent, the voters at the parent
# and what each of them foresees there. A plain tuple: hundreds are compared for a tree.
_Leaf = tuple[float, int, int, int, Voters, NDArray[np.int32]]


def grow(store: Store, scope: Scope, context: Sequence[int], nodes: int, faintest: float = FAINT) -> Grown:
    """The best `nodes` nodes of the tree of what the voters foresee behind `context`, which begins with START.

    Nodes with less reach than `faintest` are left out.
    """
    tokens: list[int] = []
    parents: list[int] = []
    reach: list[float] = []
    paths: list[list[int]] = []
    leaves: list[_Leaf] = []
    offered, recalls, faintest = 0, 0, max(FAINT, faintest)

    def offer(parent: int, chance: float, voters: Voters) -> None:
        nonlocal offered
        said = store.tokens[voters.places % store.capacity]
        for token, share in ballot(said, voters.weights):
            if chance * share >= faintest:
                offered += 1
                heapq.heappush(leaves, (-chance * share, offered, token, parent, voters, said))

    offer(-1, 1.0, recall(store, scope, context))
    while leaves and len(tokens) < nodes:
        rank, _, token, parent, voters, said = heapq.heappop(leaves)
        tokens.append(token)
        parents.append(parent)
        reach.append(-rank)
        paths.append([*(paths[parent] if parent >= 0 else ()), token])
        agrees = said == token
        if recalls < RECALLS and np.count_nonzero(agrees) < FEW:
            recalls += 1
            voters = recall(store, scope, [*context, *paths[-1]], voters)
        else:
            voters = follow(store, voters, agrees)
        offer(len(tokens) - 1, -rank, voters)
    return Grown(tuple(tokens), tuple(parents), tuple(reach))


def ballot(said: NDArray[np.int32], weights: NDArray[np.float64]) -> list[tuple[int, float]]:
    """The likeliest tokens with their shares of the vote, likeliest first; whoever foresees an end abstains."""
    counted: dict[int, float] = {}
    for token, weight in zip(said.tolist(), weights.tolist(), strict=True):
        counted[token] = counted.get(token, 0.0) + weight
    total = sum(counted.values()) + UNHEARD
    best = heapq.nlargest(BRANCHES, counted.items(), key=lambda entry: entry[1])
    return [(token, weight / total) for token, weight in best if token >= 0]


def follow(store: Store, voters: Voters, agrees: NDArray[np.bool_]) -> Voters:
    """The voters one token further on, when `agrees` of them had foreseen it."""
    weights = voters.weights * np.where(agrees, 1.0, CONTRADICTED)
    kept = (voters.places < store.written) & (weights > weights.max() * PRUNE)
    return Voters(voters.places[kept] + 1, voters.trust[kept], weights[kept])


def recall(store: Store, scope: Scope, context: Sequence[int], others: Voters | None = None) -> Voters:
    """The best voters for what stands behind `context`; `others`, one token on, are asked as well."""
    trust: dict[int, float] = {}
    for gap in range(GAPS + 1 if others is None else 1):
        for length in (2, 1) if gap < 2 else (2,):
            gram = context[max(0, len(context) - gap - length) : len(context) - gap]
            if len(gram) == length:
                for worth, ends in zip(TRUST, store.ends(scope, gram, PER_CHAIN), strict=True):
                    for end in ends:
                        trust.setdefault(end + 1 + gap, worth)
    if others is None:
        for place in range(max(1, store.written - NEWEST), store.written + 1):
            trust.setdefault(place, 1.0)
    else:
        for place, worth in zip((others.places + 1).tolist(), others.trust.tolist(), strict=True):
            trust.setdefault(place, worth)
    places = np.fromiter(trust, np.int64, len(trust))
    worth = np.fromiter(trust.values(), np.float64, len(trust))
    there = places <= store.written
    return heaviest(weigh(store, places[there], worth[there], context))


def weigh(
    store: Store, places: NDArray[np.int64], trust: NDArray[np.float64], context: Sequence[int]
) -> Voters:
    """Voters by what stands in front of their places, by their age, and by what their scopes are worth."""
    known = np.array(context[-CONTEXT:], np.int32)
    differs = store.around(places, len(known), 0) != known
    age = store.answers - store.answer[(places - 1) % store.capacity]
    weights = np.exp(-(differs @ MISMATCH[-len(known) :])) * trust * (0.5 ** (age / HALF_LIFE) + OLD)
    return Voters(places, trust, weights)


def heaviest(voters: Voters) -> Voters:
    """The `MOST` voters of greatest weight."""
    if len(voters.weights) <= MOST:
        return voters
    best = np.argpartition(-voters.weights, MOST)[:MOST]
    return Voters(voters.places[best], voters.trust[best], voters.weights[best])
