"""Lossy rules by hand. What they write is not the target's own, and they must say so."""

import math

import pytest
import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, longest
from crossdraft.engine.rules import RULES
from crossdraft.engine.rules.greedy import verify as greedy
from crossdraft.engine.rules.typical import Typical
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft_lab.rules.ensemble import Ensemble
from crossdraft_lab.rules.fuzzy import Fuzzy, divergences
from crossdraft_lab.rules.relaxed import Relaxed
from tests.engine.drafting import Language, probs_of
from tests.engine.exact import distribution


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(*probs: list[float]) -> Tensor:
    return torch.tensor(probs, dtype=torch.float64)


# -- the longest path ------------------------------------------------------------------------------------------------


def test_longest_by_hand():
    """Two paths of two nodes, 0-1 and 2-3: the scores decide, then the order; a node without its parent is out."""
    tree = DraftTree((5, 6, 7, 8, 9), (ROOT, 0, ROOT, 2, 3))
    kept = [True, True, True, True, False]
    assert longest(tree, kept, [0, 0, 0, 1, 9]) == (2, 3)
    assert longest(tree, kept, [0, 0, 0, 0, 9]) == (0, 1)
    assert longest(tree, kept, [-1, -1, 5, -9, 9]) == (0, 1)
    assert longest(tree, [False, True, True, False, True], [0] * 5) == (2,)
    assert longest(tree, [False] * 5, [0] * 5) == ()


# -- typical ---------------------------------------------------------------------------------------------------------

FLAT, SHARP = [0.25] * 4, [0.97, 0.01, 0.01, 0.01]


def test_typical_by_hand():
    """After four equal chances (e^-H = 1/4) the bar is 0.075; after a sharp row (e^-H = 0.845) it is eps = 0.09."""
    chain = DraftTree.chain([3, 1])
    assert Typical()(chain, rows(FLAT, SHARP, FLAT), generator()) == Acceptance((0,), 0)
    assert Typical()(chain, rows(SHARP, FLAT, FLAT), generator()) == Acceptance((), 0)
    assert Typical()(chain, rows(FLAT, FLAT, SHARP), generator()) == Acceptance((0, 1), 0)
    # The bar is passed, not met: p > delta e^-H.
    assert Typical(eps=1, delta=1)(chain, rows(FLAT, FLAT, FLAT), generator()).path == ()


def test_typical_keeps_the_longest_then_the_likeliest_path():
    tree = DraftTree((0, 1, 2, 0, 1), (ROOT, ROOT, ROOT, 1, 2))  # 0;  1-0;  2-1
    first = [0.5, 0.2, 0.3, 0.0]
    probs = rows(first, FLAT, [0.6, 0.2, 0.1, 0.1], [0.1, 0.5, 0.2, 0.2], SHARP, [0.0, 0.0, 0.1, 0.9])
    # 0.2 · 0.6 = 0.12 against 0.3 · 0.5 = 0.15; the likelier single token 0 is a shorter path.
    assert Typical()(tree, probs, generator()) == Acceptance((2, 4), 3)


def test_typical_without_a_draft_takes_the_likeliest_token():
    assert Typical()(DraftTree.empty(), rows([0.1, 0.2, 0.7]), generator()) == Acceptance((), 2)


# -- fuzzy -----------------------------------------------------------------------------------------------------------


def test_divergence_by_hand():
    """Disjoint: ln 2. A fair coin against a sure one: H(3/4) - ln(2)/2 = 0.2158."""
    sure, coin, other = rows([1.0, 0.0], [0.5, 0.5], [0.0, 1.0])
    found = divergences(sure, torch.stack((other, coin, sure))).tolist()
    assert found == pytest.approx([math.log(2), 0.2158, 0], abs=1e-4)


def test_fuzzy_by_hand():
    """q is kept where p is a fair coin, whichever token was drawn; after it p is sure of the other token."""
    chain = DraftTree.chain([0, 0], rows([1.0, 0.0], [1.0, 0.0]))
    probs = rows([0.5, 0.5], [0.0, 1.0], [0.5, 0.5])
    fuzzy = Fuzzy(threshold=0.25)
    assert {fuzzy(chain, probs, generator(seed)) for seed in range(20)} == {Acceptance((0,), 1)}
    strict = {Fuzzy(threshold=0.2)(chain, probs, generator(seed)) for seed in range(40)}
    assert strict == {Acceptance((), 0), Acceptance((), 1)}  # p itself, not what is left of it


def test_fuzzy_takes_the_first_sibling_that_is_close():
    """A point mass is close where p is nearly sure of it; else the sampled sibling's distribution decides."""
    tree = DraftTree((0, 1), (ROOT, ROOT), rows([0.5, 0.5]), (-1, 0))
    even, sure = rows([0.4, 0.6], [1.0, 0.0], [1.0, 0.0]), rows([0.99, 0.01], [0.0, 1.0], [1.0, 0.0])
    assert Fuzzy(threshold=0.1)(tree, even, generator()) == Acceptance((1,), 0)
    assert Fuzzy(threshold=0.1)(tree, sure, generator()) == Acceptance((0,), 1)


# -- ensemble --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("w", [0.25, 0.5, 0.9])
def test_ensemble_follows_the_mixture_where_it_was_drafted_and_p_behind(w):
    p, q, behind = Language(3, 1)(()), Language(3, 2)(()), Language(3, 3)(())
    rule = Ensemble(w=w)

    def answer(chance) -> tuple[int, ...]:
        drawn = chance.draw(q)
        tree = DraftTree.chain([drawn], q[None])
        node, left = rule.try_against_mixture(tree, ROOT, p, chance)
        return (drawn, chance.draw(behind)) if node == 0 else (chance.draw(left),)

    found = distribution(answer)
    first = torch.tensor([sum(s for t, s in found.items() if t[0] == token) for token in range(3)])
    assert torch.allclose(first.double(), w * p + (1 - w) * q, atol=1e-7)
    kept = sum(share for tokens, share in found.items() if len(tokens) == 2)
    assert kept == pytest.approx(torch.minimum(w * p + (1 - w) * q, q).sum().item())


def test_ensemble_needs_a_sampled_draft_to_be_anything_but_exact():
    p = rows([0.2, 0.8])[0]
    assert torch.equal(Ensemble().mixture(DraftTree.from_paths([[0], [1]]), ROOT, p), p)
    both = DraftTree((0, 1), (ROOT, ROOT), rows([1.0, 0.0]), (-1, 0))
    assert Ensemble(w=0.75).mixture(both, ROOT, p).tolist() == pytest.approx([0.4, 0.6])


def test_ensemble_accepts_more_by_draws():
    """p and q have nothing in common, so `rejection` accepts nothing; the mixture accepts 1 - w of it."""
    tree, probs = DraftTree.chain([0], rows([1.0, 0.0])), rows([0.0, 1.0], [0.0, 1.0])
    kept = sum(len(Ensemble(w=0.25)(tree, probs, generator(seed)).path) for seed in range(400))
    assert 270 <= kept <= 330
    assert RULES["rejection"].verify(tree, probs, generator()) == Acceptance((), 1)


# -- relaxed ---------------------------------------------------------------------------------------------------------


def logits_for(*best: int) -> Tensor:
    return torch.eye(32)[list(best)]


def test_relaxed_by_hand():
    """Wanted 10, then 20; drafted 12, then 23."""
    chain, logits = DraftTree.chain([12, 23]), logits_for(10, 20, 30)
    assert Relaxed(r=3)(chain, logits, generator()) == Acceptance((0, 1), 30)
    assert Relaxed(r=2)(chain, logits, generator()) == Acceptance((0,), 20)
    assert Relaxed(r=1)(chain, logits, generator()) == Acceptance((), 10)
    assert Relaxed()(DraftTree.chain([19]), logits_for(10, 5), generator()) == Acceptance((0,), 5)
    assert Relaxed()(DraftTree.chain([20]), logits_for(10, 5), generator()) == Acceptance((), 10)


def test_relaxed_keeps_the_longest_then_the_nearest_path():
    tree = DraftTree((10, 12, 11, 20, 20), (ROOT, ROOT, ROOT, 1, 2))  # 10;  12-20;  11-20
    assert Relaxed(r=2)(tree, logits_for(10, 0, 20, 20, 1, 2), generator()) == Acceptance((2, 4), 2)


def test_relaxed_by_nothing_is_greedy():
    for seed in range(50):
        paths = torch.randint(0, 3, (3, 4), generator=generator(seed)).tolist()
        tree = DraftTree.from_paths(paths)
        logits = probs_of(Language(3, seed), tree)
        assert Relaxed(r=0)(tree, logits, generator()) == greedy(tree, logits, generator())


# -- none of them is lossless ----------------------------------------------------------------------------------------


def test_lossy_rules_are_named_so_and_change_the_answer():
    lossy = {"typical", "fuzzy", "ensemble", "ears", "easd", "judi", "judge", "relaxed"}
    assert {name for name, rule in RULES.items() if not rule.lossless} == lossy
    # The target never writes 0 here; each rule lets the drafter's 0 pass, or forgets a chance that the target has.
    chain = DraftTree.chain([0], rows([1.0, 0.0]))
    kept = dict.fromkeys(("fuzzy", "ensemble", "relaxed"), 0)
    for seed in range(50):
        for name in kept:
            verify = Fuzzy(threshold=0.69) if name == "fuzzy" else RULES[name].verify
            kept[name] += len(verify(chain, rows([0.01, 0.99], [0.5, 0.5]), generator(seed)).path)
    assert kept["fuzzy"] == kept["relaxed"] == 50
    assert 15 <= kept["ensemble"] <= 35
    assert {Typical()(chain, rows([0.4, 0.6], [0.5, 0.5]), generator(seed)).path for seed in range(20)} == {(0,)}
