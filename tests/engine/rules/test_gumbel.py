"""`gumbel`: the answer is that of the noise alone, whatever was drafted; the noise draws as the target says."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from crossdraft.engine.accept import Acceptance, Dice
from crossdraft.engine.noise import Noise
from crossdraft.engine.rules import RULES
from crossdraft.engine.tree import ROOT, DraftTree
from tests.engine.drafting import Grow, Language, certain, mixed, probs_of, sampled, tree_of
from tests.engine.rules.rounds import WIDE_P, WIDE_Q, P

GUMBEL = RULES["gumbel"]
LENGTH = 6


def answer(rule, target: Language, draft, seed: int, length: int = LENGTH) -> tuple[int, ...]:
    """The answer of a target, of a tree drafted in every round: `draft(answer so far)`."""
    text: tuple[int, ...] = ()
    while len(text) < length:
        tree = draft(text)
        probs = torch.stack([target((*text, *tree.path_tokens(node))) for node in range(ROOT, len(tree))])
        accepted = rule(tree, probs, Noise(seed, len(text)))
        text += (*(tree.tokens[node] for node in accepted.path), accepted.bonus)
    return text[:length]


def alone(target: Language, seed: int) -> tuple[int, ...]:
    return answer(GUMBEL, target, lambda text: DraftTree.empty(), seed)


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=5)


@given(st.lists(paths, min_size=LENGTH, max_size=LENGTH), st.integers(0, 2**63 - 1))
def test_whatever_is_drafted_the_answer_is_the_same(drafts, seed):
    assert answer(GUMBEL, P, lambda text: DraftTree.from_paths(drafts[len(text)]), seed) == alone(P, seed)


def test_drafts_that_come_true_are_accepted():
    """A drafter that knows the answer, one that draws with the same noise from the same distribution, and none."""
    for seed in range(50):
        text = alone(P, seed)
        tree = DraftTree.chain(text[:4])
        probs = torch.stack([P(text[:i]) for i in range(5)])
        assert GUMBEL(tree, probs, Noise(seed)) == Acceptance((0, 1, 2, 3), text[4])
        wrong = DraftTree((*text[:2], (text[2] + 1) % 3), (ROOT, 0, 1))
        assert GUMBEL(wrong, probs_of(P, wrong), Noise(seed)) == Acceptance((0, 1), text[2])


def test_a_distribution_that_comes_with_a_draft_is_not_looked_at():
    tree = DraftTree.chain([1, 0])
    drawn = replace(tree, dists=torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), drawn_from=(0, 1))
    for seed in range(50):
        assert GUMBEL(tree, probs_of(P, tree), Noise(seed)) == GUMBEL(drawn, probs_of(P, drawn), Noise(seed))


def with_the_draft(tree, probs, noise):
    """Noise that depends on what is drafted."""
    return GUMBEL.verify(tree, probs, replace(noise, seed=noise.seed + sum(tree.tokens)))


def with_the_row(tree, probs, noise):
    """Noise that depends on a node's row in the pass, instead of its depth."""
    path, node = [], ROOT
    while True:
        token = noise.choose(probs[node + 1], node + 1)
        node = next((child for child in tree.children(node) if tree.tokens[child] == token), ROOT)
        if node == ROOT:
            return Acceptance(tuple(path), token)
        path.append(node)


@pytest.mark.parametrize("planted", [with_the_draft, with_the_row])
def test_noise_of_the_draft_or_of_the_row_would_be_noticed(planted):
    rule = replace(GUMBEL, verify=planted)
    every = DraftTree.from_paths([[2, 1], [1, 0], [0, 2]])
    found = [answer(rule, P, lambda text: every, seed) == alone(P, seed) for seed in range(50)]
    assert not all(found)


# -- the distribution --------------------------------------------------------------------------------------------------

TRIPLES = list(itertools.product(range(4), repeat=3))
DRAFTS = {
    "nothing": tree_of(),
    "chain": tree_of(certain(WIDE_Q, 1), certain(WIDE_Q, 1)),
    "drawn chain": tree_of(sampled(WIDE_Q, 1), sampled(WIDE_Q, 1)),
    "tree": tree_of(mixed(certain(WIDE_Q, 1), sampled(WIDE_P, 2)), certain(WIDE_Q, 2)),
}


def p_value(rule, grow: Grow, seeds: int = 2_000) -> float:
    """p of a chi-square of the first three tokens, over seeds."""
    dice = Dice(torch.Generator().manual_seed(1))

    def drafted(text):
        return grow(dice) if not text else DraftTree.empty()

    counts = dict.fromkeys(TRIPLES, 0)
    for seed in range(seeds):
        counts[answer(rule, WIDE_P, drafted, seed, 3)] += 1
    wanted = [seeds * math.prod(WIDE_P(t[:i])[token].item() for i, token in enumerate(t)) for t in TRIPLES]
    return stats.chisquare(list(counts.values()), wanted).pvalue


@pytest.mark.parametrize("drafted", DRAFTS)
def test_over_seeds_the_answer_follows_the_targets_distribution(drafted):
    assert p_value(GUMBEL, DRAFTS[drafted]) > 1e-3


def test_a_draft_that_is_kept_as_it_is_would_change_the_distribution():
    rule = replace(GUMBEL, verify=lambda tree, probs, noise: Acceptance(tuple(range(len(tree))), 0))
    assert p_value(rule, DRAFTS["chain"], 400) < 1e-6
