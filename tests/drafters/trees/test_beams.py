"""Beam search as a tree: by hand, against a search that knows nothing of tries, and drawn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.drafters.trees.builder import TopK, TreeBuilder
from crossdraft.drafters.trees.dynamic import beam_search
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT
from tests.drafters.trees.languages import ByChance, says, table
from tests.engine.drafting import Language
from tests.engine.rules.rounds import error

ROWS = {
    (): [0.5, 0.3, 0.2],
    (0,): [0.4, 0.3, 0.3],  # 0.20, 0.15, 0.15
    (1,): [0.9, 0.1, 0.0],  # 0.27
    (1, 0): [0.5, 0.3, 0.2],  # 0.135, 0.081
    (0, 0): [0.6, 0.4, 0.0],  # 0.12
}


def paths(tree):
    return [tuple(tree.path_tokens(node)) for node in range(len(tree))]


def test_by_hand():
    """Two beams: (0), (1); then (1, 0), (0, 0); then (1, 0, 0), (0, 0, 0). The best first, each beginning once."""
    found = beam_search(table(ROWS), TopK(), Budget(9), beams=2, depth=3)
    assert paths(found.tree) == [(0,), (1,), (1, 0), (0, 0), (1, 0, 0), (0, 0, 0)]
    assert found.path_probs == pytest.approx((0.5, 0.3, 0.27, 0.2, 0.135, 0.12))
    assert found.ranks == (0, 1, 0, 0, 0, 0)


def test_a_beginning_that_no_beam_ends_in_is_left_out():
    rows = {(): [0.5, 0.3, 0.2], (0,): [0.2, 0.2, 0.2], (1,): [0.55, 0.45, 0.0]}
    found = beam_search(table(rows), TopK(), Budget(9), beams=2, depth=2)
    assert paths(found.tree) == [(1,), (1, 0), (1, 1)]


def test_a_beam_that_has_ended_keeps_its_rank():
    """Nothing follows (0): as the likeliest of two it stays, and leaves one place at the second level."""
    rows = {(): [0.5, 0.3, 0.2], (1,): [0.6, 0.4, 0.0], (2,): [1.0, 0.0, 0.0]}
    found = beam_search(table(rows), TopK(), Budget(9), beams=2, depth=2)
    assert paths(found.tree) == [(0,), (1,), (1, 0)]


def test_the_budget_takes_the_likeliest_nodes_and_confidence_ends_beams():
    assert paths(beam_search(table(ROWS), TopK(), Budget(3), 2, 3).tree) == [(0,), (1,), (1, 0)]
    sure = beam_search(table(ROWS), TopK(), Budget(9, min_confidence=0.25), 2, 3)
    assert paths(sure.tree) == [(0,), (1,), (1, 0), (0, 0), (1, 0, 0)]
    assert len(beam_search(table({(): [0.0, 0.0]}), TopK(), Budget(9), 2, 3).tree) == 0
    answers = iter([False, True])
    assert len(beam_search(table(ROWS), TopK(), Budget(9, stop=lambda: next(answers)), 2, 3).tree) == 2


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), beams=st.integers(1, 6), depth=st.integers(1, 4))
def test_its_leaves_are_those_of_a_plain_beam_search(seed, beams, depth):
    language = Language(4, seed=seed)
    texts = [((), 1.0)]
    for _ in range(depth):
        longer = [
            ((*text, token), chance * share)
            for text, chance in texts
            for token, share in enumerate(language(text).tolist())
        ]
        texts = sorted(longer, key=lambda pair: -pair[1])[:beams]
    found = beam_search(says(language), TopK(), Budget(100), beams, depth)
    leaves = {path for node, path in enumerate(paths(found.tree)) if not found.tree.children(node)}
    assert leaves == {text for text, _ in texts}
    assert len(set(paths(found.tree))) == len(found.tree)
    assert list(found.path_probs) == sorted(found.path_probs, reverse=True)


def test_drawn_beams_leave_the_targets_distribution_as_it_is_and_reranked_ones_do_not(monkeypatch):
    target, drafter = Language(3, seed=1), Language(3, seed=2)

    def deviation():
        def grow(chance):
            return beam_search(says(drafter), ByChance(chance), Budget(4), beams=2, depth=2).tree

        return error("rejection", target, grow, 3)

    assert deviation() < 1e-12
    monkeypatch.setattr(TreeBuilder, "whole", lambda self: self.best(2))
    assert deviation() > 1e-3


def test_one_question_per_level_about_the_beams_alone():
    asked = []

    def expand(tree, nodes):
        asked.append(len(nodes))
        return torch.tensor([[0.5, 0.3, 0.2]]).expand(len(nodes), 3)

    beam_search(expand, TopK(), Budget(50), beams=4, depth=3)
    assert asked == [1, 3, 4]
    assert ROOT not in asked
