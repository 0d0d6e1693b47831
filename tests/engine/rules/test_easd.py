"""`easd` by hand and in exact expectation."""

import math

import pytest
import torch

from crossdraft.engine.accept import Chance
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft_lab.rules.easd import Easd
from tests.engine.drafting import Language
from tests.engine.exact import distribution

FLAT = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0, 0.0]).double()  # H = ln 4 = 1.386
SHARP = torch.tensor([0.97, 0.01, 0.01, 0.01, 0.0, 0.0]).double()  # H = 0.168
OTHER = torch.tensor([0.25, 0.25, 0.0, 0.0, 0.25, 0.25]).double()


def test_both_must_doubt_between_the_same_tokens():
    rule = Easd(entropy=1.0, n=4, overlap=0.75)
    assert rule.both_unsure(FLAT, FLAT)
    assert not rule.both_unsure(FLAT, SHARP)
    assert not rule.both_unsure(SHARP, FLAT)
    assert not rule.both_unsure(FLAT, OTHER)  # two of four
    assert Easd(entropy=1.0, n=4, overlap=0.5).both_unsure(FLAT, OTHER)
    assert not Easd(entropy=1.4, n=4).both_unsure(FLAT, FLAT)
    assert Easd(entropy=math.log(4) - 1e-6, n=4).both_unsure(FLAT, FLAT)


@pytest.mark.parametrize("drafted", range(4))
def test_what_both_doubt_is_refused_and_never_written(drafted):
    """p = q: `rejection` keeps every token; here the other three follow, with a third each."""
    tree = DraftTree.chain([drafted], FLAT[None])

    def outcome(chance: Chance) -> tuple[int, int]:
        node, left = Easd(n=4).confident_child(tree, ROOT, FLAT, chance)
        return node, chance.draw(left)

    assert distribution(outcome) == pytest.approx({(ROOT, token): 1 / 3 for token in range(4) if token != drafted})


def test_elsewhere_it_is_rejection():
    """Sharp ones, and certain children, whose q has no entropy."""
    for p, tree in (
        (SHARP, DraftTree.chain([1], FLAT[None])),
        (FLAT, DraftTree.chain([1], SHARP[None])),
        (FLAT, DraftTree((1, 2), (ROOT, ROOT))),
    ):
        found, exact = (
            distribution(lambda chance, step=step, p=p, tree=tree: _outcome(step(tree, ROOT, p, chance), chance))
            for step in (Easd(n=4).confident_child, try_children)
        )
        assert found == pytest.approx(exact)


def _outcome(step, chance):
    node, left = step
    return (node, chance.draw(left) if node == ROOT else ROOT)


def test_it_accepts_less_than_rejection_and_changes_the_answer():
    """In expectation over what is drafted, on a language of five tokens."""
    p, q = Language(5, seed=1, sharpness=0.5)(()), Language(5, seed=2, sharpness=0.5)(())

    def written(step, chance: Chance) -> tuple[bool, int]:
        drawn = chance.draw(q)
        node, left = step(DraftTree.chain([drawn], q[None]), ROOT, p, chance)
        return node == 0, drawn if node == 0 else chance.draw(left)

    def shares(step):
        found = distribution(lambda chance: written(step, chance))
        kept = sum(share for (kept, _), share in found.items() if kept)
        return kept, torch.tensor([sum(s for (_, t), s in found.items() if t == token) for token in range(5)]).double()

    (kept, answer), (exact_kept, exact) = shares(Easd(entropy=0.5, n=5).confident_child), shares(try_children)
    assert torch.allclose(exact, p, atol=1e-6)
    assert (answer - p).abs().max() > 0.01
    assert kept == 0 < exact_kept
