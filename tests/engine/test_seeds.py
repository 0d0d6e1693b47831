"""Drafters that write one answer together draw independently of each other."""

import pytest
import torch

from crossdraft.drafters.combine.cascade import PyramidDrafter
from crossdraft.drafters.combine.phased import PhasedDrafter
from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, sample_one
from crossdraft.engine.seeds import split_seed, split_seeds
from crossdraft.engine.tree import DraftTree
from tests.drafters.combine.test_union import Scripted
from tests.drafters.test_fork import independent

COIN = torch.tensor([0.5, 0.5], dtype=torch.float64)


class Coin(Scripted):
    """Draws a word by tossing a coin, from the stream that the request names."""

    def __init__(self):
        super().__init__(None)

    def begin(self, requests):
        return [torch.Generator().manual_seed(request.sampling.seed) for request in requests]

    def propose(self, states, budgets):
        return [Draft(DraftTree.chain([sample_one(COIN, state)], COIN[None])) for state in states]


def warm(seed):
    return Request("?", sampling=Sampling(temperature=1.0, seed=seed))


def test_every_part_has_a_seed_of_its_own_at_every_level():
    assert len({split_seed(seed, part) for seed in range(50) for part in range(4)}) == 200
    assert split_seed(split_seed(7, 0), 1) != split_seed(7, 1)
    assert 0 <= split_seed(2**63 - 1, 9) < 2**62  # again a seed, with room for those who add to it


def test_greedy_requests_stay_as_they_are():
    request = Request("?", sampling=Sampling(seed=3))
    assert split_seeds([request], 1)[0] is request


def test_two_of_a_union_agree_by_chance_alone():
    """Two fair coins show the same side in half of all cases; a word that both draw appears once in the tree."""
    union = UnionDrafter([Coin(), Coin()])
    drafts = union.propose(union.begin([warm(seed) for seed in range(400)]), [Budget(2)] * 400)
    assert sum(len(draft.tree) == 1 for draft in drafts) == pytest.approx(200, abs=50)  # five standard deviations


def test_the_later_word_of_a_phased_pair_does_not_follow_from_the_hidden_one():
    phased = PhasedDrafter(Coin(), Coin())
    states = phased.begin([warm(seed) for seed in range(400)])
    hidden = phased.propose(states, [Budget(1)] * 400)
    phased.commit(states, [VerifyOutput((0,), (*draft.tree.tokens, 5)) for draft in hidden])
    later = phased.propose(states, [Budget(1)] * 400)
    same = sum(one.tree.tokens == other.tree.tokens for one, other in zip(hidden, later, strict=True))
    assert same == pytest.approx(200, abs=50)


def test_drafters_inside_drafters_draw_independently_too():
    union = UnionDrafter([PyramidDrafter(independent(), independent()), independent()])
    (state,) = union.begin([Request("kkk", sampling=Sampling(temperature=1.0, seed=3))])
    pyramid, alone = state.parts
    writings = (pyramid.outer, pyramid.inner.state, alone)
    assert len({writing.generator.initial_seed() for writing in writings}) == 3
