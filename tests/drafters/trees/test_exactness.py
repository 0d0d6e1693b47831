"""Drawn trees leave the target's distribution as it is, to rounding; each planted fault shows."""

from functools import partial

import pytest

from crossdraft.drafters.trees.builder import BuiltTree, TreeBuilder
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.drafters.trees.static import fill
from crossdraft.engine.drafter import Budget
from crossdraft_lab.train.heads.ranks import shape_of
from tests.drafters.trees.languages import ByChance, says
from tests.engine.drafting import Language
from tests.engine.rules.rounds import error

P, Q = Language(3, seed=1), Language(3, seed=2)
SPARSE_P, SPARSE_Q = Language(4, seed=4, zeros=1), Language(4, seed=5, zeros=1)
TWO_LEVELS = shape_of([[0], [1], [0, 0], [0, 1], [1, 0]])
GAPS = shape_of([[0], [2], [2, 1]])


def two(probs):
    return 2


BUILDERS = {
    "static": (partial(fill, TWO_LEVELS), Budget(5)),
    "static, cut short": (partial(fill, TWO_LEVELS), Budget(4)),
    "static, ranks with gaps": (partial(fill, GAPS), Budget(5)),
    "static, stopped at unlikely draws": (partial(fill, TWO_LEVELS), Budget(5, min_confidence=0.3)),
    "dynamic": (partial(expand_and_rerank, beam=2, width=two), Budget(4)),
    "dynamic, stopped at unlikely draws": (
        partial(expand_and_rerank, beam=2, width=two),
        Budget(4, min_confidence=0.3),
    ),
    "dynamic, one node a level": (partial(expand_and_rerank, beam=1, width=two), Budget(4)),
}


def deviation(name: str, target: Language, drafter: Language, length: int) -> float:
    grow, budget = BUILDERS[name]
    return error("rejection", target, lambda chance: grow(says(drafter), ByChance(chance), budget).tree, length)


@pytest.mark.parametrize("name", BUILDERS)
def test_drawn_trees_are_exact_in_expectation(name):
    assert deviation(name, P, Q, 3) < 1e-12
    assert deviation(name, SPARSE_P, SPARSE_Q, 2) < 1e-12


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_a_drawn_tree_that_is_reranked_is_seen(name, monkeypatch):
    """Planted: of what was drawn, the likeliest is kept."""
    monkeypatch.setattr(TreeBuilder, "whole", lambda self: self.best(2))
    assert deviation(name, P, Q, 2) > 1e-3


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_a_drawn_tree_with_the_wrong_distributions_is_seen(name, monkeypatch):
    """Planted: each family points at the distribution of the one before it."""
    whole = TreeBuilder.whole

    def shifted(self):
        self._dists = [self._dists[0], *self._dists[:-1]]
        return whole(self)

    monkeypatch.setattr(TreeBuilder, "whole", shifted)
    assert deviation(name, P, Q, 3) > 1e-3


def test_a_skipped_draw_is_seen():
    """Planted: the place of a rank is given to the draw of that rank, and the draw before it is left out."""

    def skipping(chance) -> BuiltTree:
        builder, choose = TreeBuilder(), ByChance(chance)
        probs = Q(())
        first, _, third = choose(probs, 3)
        builder.add(-1, probs, [first, third], drawn=True)
        return builder.whole()

    wide_p, wide_q = Language(4, seed=6), Language(4, seed=7, sharpness=2)
    exact = error("rejection", wide_p, lambda c: fill(GAPS, says(wide_q), ByChance(c), Budget(5)).tree, 1)
    assert exact < 1e-12
    assert error("rejection", P, lambda chance: skipping(chance).tree, 1) > 1e-3
