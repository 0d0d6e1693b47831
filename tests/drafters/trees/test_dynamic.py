"""Expand and rerank: by hand, and against the best nodes of everything that the full expansion offers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.trees.builder import TopK
from crossdraft.drafters.trees.dynamic import allot, expand_and_rerank
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT, DraftTree
from tests.drafters.trees.languages import says, table
from tests.engine.drafting import Language

ROWS = {
    (): [0.6, 0.3, 0.1],
    (0,): [0.5, 0.4, 0.1],  # 0.30, 0.24
    (1,): [0.9, 0.1, 0.0],  # 0.27, 0.03
    (0, 0): [0.9, 0.1, 0.0],  # 0.27, 0.03
    (1, 0): [0.8, 0.2, 0.0],  # 0.216, 0.054
    (0, 1): [1.0, 0.0, 0.0],  # would be 0.24, but is third at its level
}


def two(probs):
    return 2


def grown(budget, beam=2, width=two, depth=3, rows=ROWS):
    return expand_and_rerank(table(rows), TopK(), budget, beam, width, depth)


def paths(tree):
    return [tuple(tree.path_tokens(node)) for node in range(len(tree))]


def test_by_hand():
    """Two nodes per level, two children each; of the ten nodes the best six, which do not come level by level."""
    found = grown(Budget(6))
    assert paths(found.tree) == [(0,), (1,), (0, 0), (1, 0), (0, 0, 0), (0, 1)]
    assert found.path_probs == pytest.approx((0.6, 0.3, 0.3, 0.27, 0.27, 0.24))
    assert found.ranks == (0, 1, 0, 0, 0, 1)


def test_what_cannot_come_among_the_best_is_not_asked_for():
    asked = []

    def expand(tree, nodes):
        asked.append([tuple(tree.path_tokens(node)) for node in nodes])
        return table(ROWS)(tree, nodes)

    expand_and_rerank(expand, TopK(), Budget(2), 2, two, 3)
    assert asked == [[()], [(0,)]]  # 0.3 is held by a node already: nothing after (1,) can surpass it


def test_nothing_behind_an_unlikely_path_and_nothing_after_a_stop():
    assert paths(grown(Budget(9, min_confidence=0.5)).tree) == [(0,), (1,), (0, 0), (0, 1)]
    answers = iter([False, True])
    assert paths(grown(Budget(9, stop=lambda: next(answers))).tree) == [(0,), (1,)]
    assert len(grown(Budget(0)).tree) == 0


def test_the_main_chain_is_reported_as_it_appears():
    received = []
    grown(Budget(6, on_token=received.append))
    assert received == [0, 0, 0]


def expanded(language: Language, beam: int, width: int, depth: int) -> dict[tuple[int, ...], float]:
    """All that the levels offer, from the definition: path -> probability."""
    offered: dict[tuple[int, ...], float] = {}
    front = {(): 1.0}
    for _ in range(depth):
        level = {}
        for path, reach in front.items():
            probs = language(path)
            for token in probs.topk(min(width, len(probs))).indices.tolist():
                if probs[token] > 0:
                    level[*path, token] = reach * probs[token].item()
        offered |= level
        front = dict(sorted(level.items(), key=lambda entry: -entry[1])[:beam])
    return offered


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 12))
def test_the_best_of_all_that_was_expanded(seed, beam, width, depth, total):
    language = Language(4, seed, sharpness=2, zeros=1)
    found = expand_and_rerank(says(language), TopK(), Budget(total), beam, lambda probs: width, depth)
    offered = expanded(language, beam, width, depth)
    best = sorted(offered.values(), reverse=True)[:total]
    assert list(found.path_probs) == pytest.approx(best)  # so they come best first, too
    assert {path: offered[path] for path in paths(found.tree)} == pytest.approx(
        dict(zip(paths(found.tree), found.path_probs, strict=True))
    )
    assert len(set(paths(found.tree))) == len(found.tree)


# -- drawn trees: how many children each node gets, before any is drawn -----------------------------------------------


def test_positions_go_where_the_distributions_promise_most():
    rows = [torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.5, 0.0])]
    # 0.8·(.7, .2, .1) and 0.4·(.5, .5): .56, .2, .2, .16, .08
    assert allot([0.8, 0.4], rows, [3, 3], 3) == [1, 2]
    assert allot([0.8, 0.4], rows, [3, 3], 4) == [2, 2]
    assert allot([0.8, 0.4], rows, [1, 1], 9) == [1, 1]
    assert allot([0.8, 0.4], rows, [3, 3], 9) == [3, 2]
    assert allot([0.8, 0.4], rows, [3, 3], 0) == [0, 0]


def test_the_front_must_be_a_tree_when_ties_are_cut():
    """Certain tokens: parent and child are equally likely, and the elder stays."""
    sure = {(): [1.0, 0.0], (0,): [1.0, 0.0], (0, 0): [1.0, 0.0]}
    found = expand_and_rerank(table(sure), TopK(), Budget(2), 2, two, 3)
    assert found.tree == DraftTree((0, 0), (ROOT, 0))
