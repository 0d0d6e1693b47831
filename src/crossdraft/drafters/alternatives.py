"""Second guesses: a tree from a chain whose writer knows what else it might have said.

A chain breaks at the first wrong word, and what stood behind it is lost, though mostly only that word was wrong: "a
red car ahead" for "a white car ahead". So every place of the text is a *slot* with a few likely words, and a path
through the tree takes one word from each slot in turn. What stands behind a word put in another's place was not
written with that word in view; it holds with a chance of `HOLDS` of what the writer gave it.

Nodes are taken best first, as in EAGLE-2 (Li et al. 2024), but none costs the writer a pass.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from crossdraft.engine.drafter import Draft, Outcome
from crossdraft.engine.tree import ROOT, DraftTree

WORDS = 3  # likeliest words of a slot
HOLDS = 0.93  # what a chance is worth where an earlier word of the text was replaced
FORESEEN = 32  # outcomes that are told with a draft


# Minus the chance, place and rank of the word (they break ties), parent, word, whether all words in front and this one
# are those that were written.
_Leaf = tuple[float, int, int, int, int, bool]


@dataclass(frozen=True, slots=True)
class TokenAlternatives:
    """One place of a text: words and their chances given the text in front, the one that was written first.

    Args:
        words: token ids.
        chances: of each, by the writer.
    """

    words: tuple[int, ...]
    chances: tuple[float, ...]


def tree_from_topk(
    slots: Sequence[TokenAlternatives], nodes: int, words: int = WORDS, ends: Collection[int] = ()
) -> Draft:
    """The likeliest `nodes` nodes of all texts that the slots allow.

    Args:
        slots: the text's places, in turn.
        nodes: most nodes.
        words: most words of a slot that become nodes; with 1 the tree is the chain that was written.
        ends: tokens behind which a text does not go on.

    Returns:
        The tree with its chances. Its `outcomes` are the likeliest words that are no nodes.

    >>> draft = spread([Slot((1, 7), (0.6, 0.4)), Slot((2,), (0.9,))], 3)
    >>> draft.tree.tokens, draft.tree.parents, draft.reach
    ((1, 2, 7), (-1, 0, -1), (0.6, 0.54, 0.4))
    """
    parents: list[int] = []
    path_probs: list[float] = []
    texts: list[tuple[int, ...]] = []  # down to each node, itself included
    passed: list[_Leaf] = []
    leaves: list[_Leaf] = []  # what may be added next, best first

    def offer(parent: int, chance: float, place: int, written: bool) -> None:
        if place < len(slots):
            worth = chance if written else chance * HOLDS
            for rank, (word, share) in enumerate(zip(slots[place].words, slots[place].chances, strict=True)):
                heapq.heappush(leaves, (-worth * share, place, rank, parent, word, written and rank == 0))

    offer(ROOT, 1.0, 0, True)
    while leaves and len(texts) < nodes:
        leaf = heapq.heappop(leaves)
        chance, place, rank, parent, word, written = leaf
        if rank >= words:
            passed.append(leaf)
            continue
        texts.append((*(() if parent == ROOT else texts[parent]), word))
        parents.append(parent)
        path_probs.append(-chance)
        if word not in ends:
            offer(len(texts) - 1, -chance, place + 1, written)
    tree = DraftTree(tuple(text[-1] for text in texts), tuple(parents))
    outcomes = (
        Outcome((*(() if parent == ROOT else texts[parent]), word), -chance)
        for chance, _, _, parent, word, _ in heapq.nsmallest(FORESEEN, [*passed, *leaves])
    )
    return Draft(tree, tuple(path_probs), outcomes=tuple(outcomes))


def alternatives_of(draft: Draft) -> list[TokenAlternatives]:
    """The slots of a drafted chain, as far as its outcomes tell of other words."""
    chain = draft.tree.tokens
    others: list[dict[int, float]] = [{} for _ in chain]
    for outcome in draft.outcomes:
        place = len(outcome.tokens) - 1
        if place < len(chain) and outcome.tokens[:-1] == chain[:place]:
            others[place][outcome.tokens[-1]] = outcome.prob
    slots = []
    for place, word in enumerate(chain):
        above = draft.path_probs[place - 1] if place else 1.0
        rest = {other: chance / above for other, chance in others[place].items() if above > 0}
        slots.append(
            TokenAlternatives((word, *rest), (draft.path_probs[place] / above if above > 0 else 0.0, *rest.values()))
        )
    return slots
