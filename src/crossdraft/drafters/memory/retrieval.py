"""Retrieval: a draft tree from weighted n-gram matches in earlier answers, in running ones, in this one and its prompt.

Every position whose context resembles the current one is a *match*: it predicts that the text goes on as it did there.
A match's weight falls with every preceding token that differs from ours (nearer tokens count more), with its age, and
with the distance of its scope.

The tree is the mixture of the matches' predictions (Bayes' rule for a mixture of experts, each of which predicts one
text). After a token that a match did not predict, the match keeps the share `CONTRADICTED` of its weight and its place
in the text: after a replaced token the text often goes on as before. What no match predicts is divided among recycled
tokens (`drafters.recycled`). Nodes are taken best first.
"""

import heapq
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from crossdraft.drafters.memory.datastore import START, Datastore, Scope
from crossdraft.drafters.recycled import RecycledTokens
from crossdraft.drafters.token_index import TokenIndex
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree

CONTEXT = 16  # tokens in front of a position that are compared
MISMATCH = 5.0 * 0.5 ** np.arange(CONTEXT)[::-1]  # nats that a differing token costs; the last one is the nearest
OWN, TRUST = 1.1, (1.0, 1.0, 0.3)  # weights: in this answer; in the same clip, the same question, anywhere
WITHIN = 0.5  # factor of the exponent of age after an answer's begin, where its text shows which answers are like it
GAPS = 2  # most of the last tokens that may have been replaced
PER_CHAIN, MOST = 16, 64  # matches taken from one chain, and of all chains
NEWEST = 100  # newest positions that count whatever stands in front of them: they have the current topic
RECENT, OWN_MOST = 256, 16  # of this answer: tokens that are searched, and most matches
PROMPT = 1.0  # weight in the prompt
GRAM, PER_LENGTH = 4, 4  # of the prompt: tokens of an n-gram that is looked up, and newest places for each length
RUNNING = 16  # answers being written that are searched as well
LIKE = 0.006  # ... and their least likeness: where the last token alone differs it is e^-5 = 0.0067
DEEPEST = 48  # levels of a tree
FAINT = 1e-6  # least path probability of a node
NO_TOKEN = -2  # in front of START

CONTRADICTED = 0.01  # what is left of a match's weight after a token that it did not predict
PRUNE = 0.02  # of the greatest weight: lighter matches are dropped
UNPREDICTED = 0.05  # the weight of whatever no match predicts
BRANCHES = 16  # most children of a node

Match = tuple[float, int]  # weight, row of what it predicts
Matches = list[Match]  # heaviest first


def retrieve(
    store: Datastore,
    scope: Scope,
    context: Sequence[int],
    nodes: int,
    faintest: float = FAINT,
    running: Sequence[Sequence[int]] = (),
    text: TokenIndex | None = None,
    recycled: RecycledTokens | None = None,
) -> Draft:
    """The likeliest `nodes` nodes after `context`, which begins with START.

    Args:
        faintest: least path probability of a node.
        running: answers in the same scope that are being written, as `context` is.
        text: index of the answer and, once it is known, the prompt before it.
        recycled: tokens that the target thought likely earlier in the answer.
    """
    positions, trust = find_matches(store, scope, context)
    weights = match_weights(store, positions, trust, context, scope.question)
    if len(weights) > MOST:
        best = np.argpartition(-weights, MOST)[:MOST]
        positions, weights = positions[best], weights[best]
    depth = min(nodes, DEEPEST)
    own, own_weights = own_matches(context, depth)
    others, other_weights = running_matches(running, context, depth)
    given, given_weights = prompt_matches(text, depth)
    predicted = np.concatenate([own, others, given, store.around(positions, 0, depth)])
    every = np.concatenate([own_weights, other_weights, given_weights, weights])
    return tree_from_matches(predicted, every, nodes, max(FAINT, faintest), recycled)


def own_matches(context: Sequence[int], depth: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """[M, depth] continuations at positions of this answer that resemble its end, and their [M] weights.

    A continuation that reaches the end of the answer goes on from its own position again, as repetitions often do.
    """
    recent, positions, weights = similar_positions(context, context)
    onwards = positions[:, None] + np.arange(depth) % (len(recent) - positions)[:, None]
    return recent[onwards], weights * OWN


def prompt_matches(text: TokenIndex | None, depth: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """[M, depth] continuations at places of the prompt that resemble the end of the text, and their [M] weights."""
    if text is None or text.prompt is None:
        return np.empty((0, depth), np.int32), np.empty(0)
    last, found = text.tokens(max(0, len(text) - CONTEXT), len(text)), dict[int, None]()
    for gap in range(GAPS + 1):
        for places in text.prompt.ranges(last[: len(last) - gap][-GRAM:])[::-1]:
            newest = np.sort(places)[: -PER_LENGTH - 1 : -1] + gap
            found |= dict.fromkeys(newest[newest < len(text.prompt.tokens)].tolist())
    places = np.fromiter(found, np.int32, len(found))
    known = np.array(last, np.int32)
    around = text.prompt.around(places, len(known), depth)
    differs = around[:, : len(known)] != known
    weights: NDArray[np.float64] = np.exp(-(differs @ MISMATCH[-len(known) :])) * PROMPT
    return around[:, len(known) :], weights


def running_matches(
    answers: Sequence[Sequence[int]], context: Sequence[int], depth: int
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """[M, depth] continuations in answers that are being written, as far as they go, and their [M] weights."""
    found: list[tuple[NDArray[np.int32], NDArray[np.float64]]] = []
    for answer in answers[-RUNNING:]:
        recent, positions, weights = similar_positions(answer, context)
        padded = np.concatenate([recent, np.full(depth, START, np.int32)])
        found.append((padded[positions[:, None] + np.arange(depth)], weights))
    if not found:
        return np.empty((0, depth), np.int32), np.empty(0)
    predicted, weights = zip(*found, strict=True)
    return np.concatenate(predicted), np.concatenate(weights)


def similar_positions(
    answer: Sequence[int], context: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.intp], NDArray[np.float64]]:
    """An answer's last tokens, the positions among them whose preceding text is like `context`'s end, and weights."""
    recent, known = np.array(answer[-RECENT:], np.int32), np.array(context[-CONTEXT:], np.int32)
    padded = np.concatenate([np.full(len(known), NO_TOKEN, np.int32), recent])
    before = sliding_window_view(padded, len(known))[1:-1]  # [position - 1]; nothing follows the last token
    weights: NDArray[np.float64] = np.exp(-((before != known) @ MISMATCH[-len(known) :]))
    positions = 1 + np.flatnonzero(weights >= LIKE)[-OWN_MOST:]
    return recent, positions, weights[positions - 1]


def find_matches(
    store: Datastore, scope: Scope, context: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """[N] positions after earlier occurrences of `context`'s end, some last tokens ignored; and the scopes' trust."""
    trust: dict[int, float] = {}
    no_clip = scope.clip == 0  # else all answers without one would count as about the same
    for gap in range(GAPS + 1):
        for length in (2, 1) if gap < 2 else (2,):
            gram = context[max(0, len(context) - gap - length) : len(context) - gap]
            if len(gram) == length:
                for worth, ends in [*zip(TRUST, store.ends(scope, gram, PER_CHAIN), strict=True)][no_clip:]:
                    for end in ends:
                        trust.setdefault(end + 1 + gap, worth)
    for position in range(max(1, store.written - NEWEST), store.written + 1):
        trust.setdefault(position, 1.0)
    positions = np.fromiter(trust, np.int64, len(trust))
    held = positions <= store.written
    return positions[held], np.fromiter(trust.values(), np.float64, len(trust))[held]


def match_weights(
    store: Datastore,
    positions: NDArray[np.int64],
    trust: NDArray[np.float64],
    context: Sequence[int],
    question: int = 0,
) -> NDArray[np.float64]:
    """[N] weights by the tokens in front of the positions, by their age, and by the trust in their scopes.

    Age a multiplies a weight by a^-s, where the store has learned s (`Recency`).
    """
    known = np.array(context[-CONTEXT:], np.int32)
    differs = store.around(positions, len(known), 0) != known
    exponent = store.recency.exponent * (WITHIN if len(context) > 1 else 1.0)
    weights: NDArray[np.float64] = np.exp(-(differs @ MISMATCH[-len(known) :])) * trust
    return weights * store.ages(positions, question).astype(np.float64) ** -exponent


def tree_from_matches(
    predicted: NDArray[np.int32],
    weights: NDArray[np.float64],
    nodes: int,
    faintest: float,
    recycled: RecycledTokens | None = None,
) -> Draft:
    """The likeliest `nodes` nodes of the tree that the matches predict, best first.

    Plain lists and tuples throughout: most nodes have a handful of matches, for which a numpy call takes longer than a
    loop.

    Args:
        predicted: [N, d] the continuation at each match; a negative token is an end.
        weights: [N].
        nodes: most nodes.
        faintest: least path probability of a node.
        recycled: divides what no match predicts.
    """
    tokens: list[int] = []
    parents: list[int] = []
    path_probs: list[float] = []
    columns: list[list[int]] = []  # of `predicted`, as far down as the tree goes
    # What may be added next: minus its path probability, a number that breaks ties, token, parent, depth, the matches
    # that predict it, and all matches at its parent.
    leaves: list[tuple[float, int, int, int, int, Matches, Matches]] = []
    matches = sorted(zip(weights.tolist(), range(len(weights)), strict=True), reverse=True)
    parent, above, depth, offered, path = -1, 1.0, 0, 0, list[int]()
    while len(tokens) < nodes:
        if depth < predicted.shape[1]:
            if depth == len(columns):
                columns.append(predicted[:, depth].tolist())
            likely = recycled.next_tokens(path) if recycled is not None else {}
            for token, prob, agreeing in next_tokens(matches, columns[depth], likely):
                if above * prob < faintest:
                    break  # the others are fainter still
                offered += 1
                heapq.heappush(leaves, (-above * prob, offered, token, parent, depth, agreeing, matches))
        if not leaves:
            break
        negative, _, token, its_parent, depth, agreeing, matches = heapq.heappop(leaves)
        parent, above, path = len(tokens), -negative, [*tokens[its_parent : its_parent + 1], token]
        tokens.append(token)
        parents.append(its_parent)
        path_probs.append(above)
        matches = reweighted(matches, agreeing, columns[depth])
        depth += 1
    return Draft(DraftTree(tuple(tokens), tuple(parents)), tuple(path_probs))


def next_tokens(
    matches: Matches, column: Sequence[int], likely: Mapping[int, float] = MappingProxyType({})
) -> list[tuple[int, float, Matches]]:
    """The likeliest tokens, likeliest first: (token, probability, the matches that predict it).

    `column[row]` is the token that the match of that row predicts; a match that predicts an end adds to no token.
    `likely` are tokens with their shares of what no match predicts.
    """
    if len(matches) == 1 and not likely:  # the usual case
        weight, row = matches[0]
        return [(column[row], weight / (weight + UNPREDICTED), matches)] if column[row] >= 0 else []
    agreeing: dict[int, Matches] = {}
    counted: dict[int, float] = {}
    for match in matches:
        weight, row = match
        token = column[row]
        if token in agreeing:
            agreeing[token].append(match)
            counted[token] += weight
        else:
            agreeing[token] = [match]
            counted[token] = weight
    total = sum(counted.values()) + UNPREDICTED
    for token, share in likely.items():
        counted[token] = counted.get(token, 0.0) + share * UNPREDICTED
    best = sorted(counted.items(), key=itemgetter(1), reverse=True)[:BRANCHES]
    return [(token, weight / total, agreeing.get(token, [])) for token, weight in best if token >= 0]


def reweighted(matches: Matches, agreeing: Matches, column: Sequence[int]) -> Matches:
    """The matches after the token that `agreeing` predicts: the others lose weight, and the lightest are dropped."""
    if not matches:
        return []
    token = column[agreeing[0][1]] if agreeing else None  # only recycled tokens have it
    heaviest_other = 0.0 if len(agreeing) == len(matches) else matches[0][0] * CONTRADICTED
    # If the heaviest itself agrees, then its weight counts, which is greater than `heaviest_other`.
    least = max(agreeing[0][0] if agreeing else 0.0, heaviest_other) * PRUNE
    stay = [match for match in agreeing if match[0] > least] if agreeing and agreeing[-1][0] <= least else agreeing
    if heaviest_other <= least:
        return stay
    others: Matches = []
    for weight, row in matches:
        if weight * CONTRADICTED <= least:
            break  # the others are lighter still
        if column[row] != token:
            others.append((weight * CONTRADICTED, row))
    return sorted(stay + others, reverse=True) if others else stay
