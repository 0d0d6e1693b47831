"""Random drafters against brute force: every tree they can draw, every die the rule can throw, compared with p.

A drafter is random in its shape (which may depend on the tokens drawn so far), in how each sibling is chosen, and in
its distributions, zeros among them. Drafts and dice are enumerated one after the other, and the bonus is not drawn but
kept as the weights that it would be drawn by: so a drafter costs milliseconds.
"""

import random
from functools import partial

import pytest
import torch
from torch import Tensor

from crossdraft.engine import accept
from crossdraft.engine.accept import Acceptance, Chance
from crossdraft.engine.rules import rejection
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft_lab.rules import block
from tests.engine.drafting import Grow, Language, PartialTree, Way, certain, probs_of, sampled, with_replacement
from tests.engine.exact import Scripted, distribution
from tests.engine.rules.rounds import VERIFIERS

FEW = {"gumbel": 50, "rejection": 50, "block": 120}
MANY = 2500  # of each rule


class Weighing(Scripted):
    """Enumerates the dice only: the one draw of a rule, its last act, is remembered by its weights."""

    weights: Tensor

    def draw(self, weights: Tensor) -> int:
        self.weights = weights / weights.sum()
        return -1


class Drawing(Scripted):
    """Enumerates the draws too, of which `gumbel` has one after every node: its last is a weight of 1."""

    weights: Tensor

    def draw(self, weights: Tensor) -> int:
        token = super().draw(weights)
        self.weights = torch.eye(len(weights), dtype=torch.float64)[token]
        return token


def pairs_of(rule: str, target: Language, tree: DraftTree) -> Tensor:
    """[V, V] the distribution of the first two tokens of a round over this very tree, finished by the target alone."""
    probs, behind = probs_of(target, tree), followers(target)
    found = torch.zeros(target.vocabulary, target.vocabulary, dtype=torch.float64)
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        chance = (Drawing if rule == "gumbel" else Weighing)(scripts.pop())
        path = VERIFIERS[rule](tree, probs, chance).path
        scripts += chance.untaken
        first, second = (*(tree.tokens[node] for node in path[:2]), -1, -1)[:2]
        if second >= 0:
            found[first, second] += chance.probability
        elif first >= 0:
            found[first] += chance.probability * chance.weights
        else:
            found += chance.probability * chance.weights[:, None] * behind
    return found


def followers(target: Language) -> Tensor:
    """[V, V] what follows each first token."""
    return torch.stack([target((token,)) for token in range(target.vocabulary)])


def error(rule: str, target: Language, grow: Grow) -> float:
    """Largest error of any pair's probability, over all that the drafter may draw."""
    drafts = distribution(lambda chance: Same(grow(chance)))
    found = sum(share * pairs_of(rule, target, same.tree) for same, share in drafts.items())
    return (found - target(())[:, None] * followers(target)).abs().max().item()


class Same:
    """A tree as an outcome: a drafter's distributions follow from its tokens, so equal tokens are the same tree."""

    def __init__(self, tree: DraftTree) -> None:
        self.tree, self.key = tree, (tree.tokens, tree.parents, tree.drawn_from)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


# -- random drafters -------------------------------------------------------------------------------------------------

ANY: list[Way] = [sampled, certain, with_replacement]
KINDS: dict[str, list[Way]] = {"gumbel": ANY, "rejection": ANY, "block": [sampled, certain]}


def random_drafter(rule: str, seed: int) -> tuple[Language, Grow]:
    """A target and a drafter for it: at most four siblings at the root and two after each of them."""
    dice = random.Random(seed)
    vocabulary = dice.randint(2, 4)
    language = partial(random_language, dice, vocabulary)
    target, drafters = language(), [language() for _ in range(3)]
    most = 1 if rule == "block" else 4 if vocabulary < 4 else 3

    def grow(chance: Chance) -> DraftTree:
        part = PartialTree()
        front = offspring(part, ROOT, chance, most)
        for parent in front:
            grandchildren = offspring(part, parent, chance, 1 if len(front) > 1 else min(most, 2))
            if rule == "block" and grandchildren:
                offspring(part, grandchildren[0], chance, 1)
        return part.tree()

    def offspring(part: PartialTree, parent: int, chance: Chance, most: int) -> list[int]:
        """Children of one node: how many, and how chosen, depends on the tokens above and on no sibling."""
        own = random.Random(hash((seed, part.prefix(parent))))
        left = own.randint(1 if parent == ROOT else 0, most)
        nodes: list[int] = []
        while left > 0:
            k = own.randint(1, left)
            nodes += own.choice(KINDS[rule])(own.choice(drafters), min(k, vocabulary))(part, parent, chance)
            left -= k
        return nodes

    return target, grow


def random_language(dice: random.Random, vocabulary: int) -> Language:
    zeros = dice.randint(0, vocabulary - 1) if dice.random() < 0.3 else 0
    return Language(vocabulary, dice.randint(0, 10**9), dice.uniform(0, 4), zeros)


@pytest.mark.parametrize("rule", VERIFIERS)
def test_random_drafters(rule):
    worst = max((error(rule, *random_drafter(rule, seed)), seed) for seed in range(FEW[rule]))
    assert worst[0] < 1e-12, f"seed {worst[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("rule", VERIFIERS)
def test_thousands_of_random_drafters(rule):
    worst = max((error(rule, *random_drafter(rule, seed)), seed) for seed in range(1000, 1000 + MANY))
    assert worst[0] < 1e-12, f"seed {worst[1]}"


WRONG = {
    "gumbel": (accept, "follow", lambda tree, wanted: Acceptance(tuple(tree.path(len(tree) - 1)), wanted(ROOT, 0))),
    "rejection": (rejection, "residual", lambda p, q: p),
    "block": (block, "passes", lambda rest, owed: owed),
}


@pytest.mark.parametrize("rule", VERIFIERS)
def test_random_drafters_show_a_planted_bug(rule, monkeypatch):
    monkeypatch.setattr(*WRONG[rule])
    assert max(error(rule, *random_drafter(rule, seed)) for seed in range(10)) > 1e-3
