"""Top-k alternatives: a tree from a chain and the other likely tokens at each of its positions.

A chain breaks at the first wrong token, and the tokens after it are lost, though mostly only that token was wrong: "a
red car ahead" for "a white car ahead". So every position keeps a few likely tokens, and a path through the tree takes
one token of each position in turn. Tokens after a replaced token were drafted without it; their probability counts
`HOLDS` times what the drafter gave it.

Nodes are taken best first, as in EAGLE-2 (Li et al. 2024), but none costs the drafter a pass.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from crossdraft.drafters import WORDS
from crossdraft.engine.drafter import Draft, Outcome
from crossdraft.engine.tree import ROOT, DraftTree

HOLDS = 0.93  # factor of a probability where an earlier token was replaced
OUTCOMES = 32  # outcomes that are reported with a draft


# Minus the path probability, position and rank of the token (they break ties), parent, token, and whether the path is
# the chain that was drafted.
_Leaf = tuple[float, int, int, int, int, bool]


@dataclass(frozen=True, slots=True)
class TokenAlternatives:
    """One position of a drafted chain: likely tokens with their probabilities given the chain before it.

    Args:
        tokens: ids, the drafted one first.
        probs: the drafter's probability of each token.
    """

    tokens: tuple[int, ...]
    probs: tuple[float, ...]


def tree_from_topk(
    chain: Sequence[TokenAlternatives], nodes: int, words: int = WORDS, ends: Collection[int] = ()
) -> Draft:
    """Build the tree of the likeliest `nodes` nodes among all texts that the alternatives allow.

    Args:
        chain: the positions, in turn.
        nodes: most nodes.
        words: most tokens of a position that become nodes; with 1 the tree is the drafted chain.
        ends: tokens after which a text does not go on.

    Returns:
        The tree with its path probabilities. Its `outcomes` are the likeliest tokens that are no nodes.

    >>> draft = tree_from_topk([TokenAlternatives((1, 7), (0.6, 0.4)), TokenAlternatives((2,), (0.9,))], 3)
    >>> draft.tree.tokens, draft.tree.parents, draft.path_probs
    ((1, 2, 7), (-1, 0, -1), (0.6, 0.54, 0.4))
    """
    parents: list[int] = []
    path_probs: list[float] = []
    texts: list[tuple[int, ...]] = []  # down to each node, itself included
    passed: list[_Leaf] = []
    leaves: list[_Leaf] = []  # what may be added next, best first

    def offer(parent: int, above: float, depth: int, drafted: bool) -> None:
        if depth < len(chain):
            factor = above if drafted else above * HOLDS
            for rank, (token, prob) in enumerate(zip(chain[depth].tokens, chain[depth].probs, strict=True)):
                heapq.heappush(leaves, (-factor * prob, depth, rank, parent, token, drafted and rank == 0))

    offer(ROOT, 1.0, 0, True)
    while leaves and len(texts) < nodes:
        leaf = heapq.heappop(leaves)
        negative, depth, rank, parent, token, drafted = leaf
        if rank >= words:
            passed.append(leaf)
            continue
        texts.append((*(() if parent == ROOT else texts[parent]), token))
        parents.append(parent)
        path_probs.append(-negative)
        if token not in ends:
            offer(len(texts) - 1, -negative, depth + 1, drafted)
    tree = DraftTree(tuple(text[-1] for text in texts), tuple(parents))
    outcomes = (
        Outcome((*(() if parent == ROOT else texts[parent]), token), -negative)
        for negative, _, _, parent, token, _ in heapq.nsmallest(OUTCOMES, [*passed, *leaves])
    )
    return Draft(tree, tuple(path_probs), outcomes=tuple(outcomes))


def alternatives_of(draft: Draft) -> list[TokenAlternatives]:
    """Alternatives at each position of a drafted chain, from its outcomes: the inverse of `tree_from_topk`."""
    chain = draft.tree.tokens
    others: list[dict[int, float]] = [{} for _ in chain]
    for outcome in draft.outcomes:
        depth = len(outcome.tokens) - 1
        if depth < len(chain) and outcome.tokens[:-1] == chain[:depth]:
            others[depth][outcome.tokens[-1]] = outcome.prob
    found = []
    for depth, token in enumerate(chain):
        above = draft.path_probs[depth - 1] if depth else 1.0
        rest = {other: prob / above for other, prob in others[depth].items() if above > 0}
        prob = draft.path_probs[depth] / above if above > 0 else 0.0
        found.append(TokenAlternatives((token, *rest), (prob, *rest.values())))
    return found
