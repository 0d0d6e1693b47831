"""A vote on how an answer goes on, among places in earlier answers, and in this one, that look like where it is now.

Every place (a *voter*) says that the text goes on as it did there. Its weight is its chance to be right: it falls
with every token in front of it that differs from ours, the more the nearer that token stands, with age, and with the
distance of its scope. What the votes make of it is a tree: see `growth`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from crossdraft.drafters.memory.datastore import Datastore, Scope
from crossdraft.drafters.memory.growth import BuiltTree, grow

CONTEXT = 16  # tokens in front of a place that are compared
MISMATCH = 5.0 * 0.5 ** np.arange(CONTEXT)[::-1]  # nats that a differing token costs; the last one is the nearest
OWN, TRUST = 1.0, (1.0, 1.0, 0.3)  # in this answer, of age 0; in the same clip, the same question, anywhere
HALF_LIFE, OLD = 10, 0.1  # answers in which a voter loses half its weight; what it keeps for ever
GAPS = 2  # as many of the last tokens may be another's in its place
PER_CHAIN, MOST = 16, 64  # voters taken from one chain, and of all chains
NEWEST = 100  # places that vote whatever stands in front of them: what is being talked about
RECENT, ECHOES = 256, 16  # of this answer: tokens that are looked through, and most voters
LIKE = 0.006  # ... and their least likeness: where the last token alone differs it is e^-5 = 0.0067
AHEAD = 48  # the deepest tree
FAINT = 1e-6  # less likely paths are not drafted
NO_TOKEN = -2  # in front of START


def retrieve(store: Datastore, scope: Scope, context: Sequence[int], nodes: int, faintest: float = FAINT) -> BuiltTree:
    """The best `nodes` nodes behind `context`, which begins with START; none with less reach than `faintest`."""
    places, trust = voters(store, scope, context)
    weights = weigh(store, places, trust, context)
    if len(weights) > MOST:
        best = np.argpartition(-weights, MOST)[:MOST]
        places, weights = places[best], weights[best]
    depth = min(nodes, AHEAD)
    own, own_weights = echoes(context, depth)
    ahead = np.concatenate([own, store.around(places, 0, depth)])
    return grow(ahead, np.concatenate([own_weights, weights]), nodes, max(FAINT, faintest))


def echoes(context: Sequence[int], depth: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """[M, depth] how this answer went on at places of its own that look like where it is now, and their [M] weights.

    Behind the last token a place goes on as it did from itself onwards: what was repeated may be so again.
    """
    recent = np.array(context[-RECENT:], np.int32)
    known = recent[-CONTEXT:]
    padded = np.concatenate([np.full(len(known), NO_TOKEN, np.int32), recent])
    before = sliding_window_view(padded, len(known))[1:-1]  # [place - 1]; the last one would be where we are
    weights: NDArray[np.float64] = np.exp(-((before != known) @ MISMATCH[-len(known) :]))
    places = 1 + np.flatnonzero(weights >= LIKE)[-ECHOES:]
    onwards = places[:, None] + np.arange(depth) % (len(recent) - places)[:, None]
    return recent[onwards], weights[places - 1] * OWN * (1 + OLD)


def voters(store: Datastore, scope: Scope, context: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
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
    store: Datastore, places: NDArray[np.int64], trust: NDArray[np.float64], context: Sequence[int]
) -> NDArray[np.float64]:
    """[N] weights by what stands in front of the places, by their age, and by what their scopes are worth."""
    known = np.array(context[-CONTEXT:], np.int32)
    differs = store.around(places, len(known), 0) != known
    age = store.answers - store.answer[(places - 1) % store.capacity]
    weights: NDArray[np.float64] = np.exp(-(differs @ MISMATCH[-len(known) :])) * trust
    return weights * (0.5 ** (age / HALF_LIFE) + OLD)
