"""`judi` by hand, against the authors' formula, and in exact expectation."""

import math

import pytest
import torch
from torch.nn import functional as F

from crossdraft.engine.accept import Acceptance, Chance
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft_lab.rules.judi import Judi, divergences
from tests.engine.exact import distribution

P, NEAR, FAR = (torch.tensor(row).double() for row in ([0.6, 0.4, 0.0], [0.4, 0.5, 0.1], [0.01, 0.09, 0.9]))


def test_divergence_by_hand_and_as_the_authors_compute_it():
    """KL((1/2, 1/2) ‖ (1/4, 3/4)) = ln 2 / 2 + ln(2/3) / 2 = 0.1438; where q is 0, 1e-8 stands for it."""
    p = torch.tensor([0.5, 0.5]).double()
    found = divergences(p, torch.tensor([[0.25, 0.75], [1, 0], [0.5, 0.5]]).double()).tolist()
    assert found == pytest.approx([math.log(2) / 2 + math.log(2 / 3) / 2, math.log(0.25e8) / 2, 0])
    target, draft = torch.randn(2, 5, 40, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    theirs = F.kl_div(draft, target, reduction="none", log_target=True).sum(-1)
    ours = [divergences(one.exp(), other.exp()[None]).item() for one, other in zip(target, draft, strict=True)]
    assert ours == pytest.approx(theirs.tolist())


def test_a_drafter_that_knows_a_part_of_the_vocabulary_may_be_near():
    """Of the target's 1 % for token 2 the drafter knows nothing: 0.99 ln 0.99 + 0.01 ln 1e6 = 0.128 at most."""
    p, q = torch.tensor([0.6, 0.39, 0.01]).double(), torch.tensor([0.6 / 0.99, 0.39 / 0.99, 0]).double()
    assert divergences(p, q[None]).item() == pytest.approx(0.99 * math.log(0.99) + 0.01 * math.log(1e6))
    sure = torch.tensor([0.9, 0.1]).double()
    assert divergences(sure, torch.eye(2)).min().item() == pytest.approx(0.9 * math.log(0.9) + 0.1 * math.log(1e7))
    assert 0.9 * math.log(0.9) + 0.1 * math.log(1e7) > 1.5


def test_what_diverges_little_is_kept_whichever_it_is():
    """KL(P ‖ NEAR) = 0.6 ln 1.5 + 0.4 ln 0.8 = 0.154: even token 2 is kept, which the target never writes."""
    near = DraftTree.chain([2], NEAR[None])
    probs = torch.stack((P, torch.tensor([0.0, 1.0, 0.0]).double()))
    seeds = [torch.Generator().manual_seed(seed) for seed in range(20)]
    assert {Judi(threshold=0.16)(near, probs, seed) for seed in seeds} == {Acceptance((0,), 1)}
    assert {Judi(threshold=0.15)(near, probs, seed).path for seed in seeds} == {()}
    assert {Judi(threshold=0.16, confidence=0.59)(near, probs, seed).path for seed in seeds} == {()}


@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        (Judi(threshold=0.15), DraftTree.chain([1], NEAR[None])),  # too far
        (Judi(threshold=9, confidence=0.5), DraftTree.chain([1], FAR[None])),  # too sure
        (Judi(threshold=1.5), DraftTree((1, 0), (ROOT, ROOT))),  # point masses
    ],
)
def test_elsewhere_it_is_rejection(rule, tree):
    def outcome(step, chance: Chance) -> tuple[int, int]:
        node, left = step(tree, ROOT, P, chance)
        return node, chance.draw(left) if node == ROOT else ROOT

    found = distribution(lambda chance: outcome(rule.harmless_child, chance))
    assert found == pytest.approx(distribution(lambda chance: outcome(try_children, chance)))


def test_the_first_sibling_that_is_near_enough_is_kept():
    tree = DraftTree((0, 1), (ROOT, ROOT), torch.stack((FAR, NEAR)), (0, 1))
    probs = torch.stack((P, P, P))
    assert Judi(threshold=0.2)(tree, probs, torch.Generator()).path == (1,)
