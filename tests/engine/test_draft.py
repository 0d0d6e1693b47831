"""The part of a draft that follows tokens, on random trees."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.drafter import NOTHING, Draft, Outcome
from crossdraft.engine.tree import DraftTree
from tests.engine.test_tree import trees


@given(trees(), st.lists(st.integers(0, 4), max_size=4))
def test_the_part_after_tokens_has_the_paths_that_begin_with_them(tree, tokens):
    draft = Draft(tree, tuple(0.5**depth for depth in tree.depths), outcomes=(Outcome((*tokens, 9), 0.25),))
    after = draft.after(tokens)
    below = tree.follow(tokens)[-1] if tokens and len(tree.follow(tokens)) == len(tokens) else None
    if not tokens:
        assert after is draft
    elif below is None:
        assert after.tree == NOTHING.tree
        assert not after.path_probs
    else:
        mine = [node for node in range(len(tree)) if below in tree.path(node)[:-1]]
        assert [after.tree.path_tokens(i) for i in range(len(mine))] == [
            tree.path_tokens(node)[len(tokens) :] for node in mine
        ]
        assert after.path_probs == tuple(0.5**depth for depth in after.tree.depths)
        assert after.outcomes == (Outcome((9,), min(1.0, 0.25 / 0.5 ** len(tokens))),)


def test_what_was_drawn_keeps_its_distributions():
    dists = torch.eye(8)[[1, 2, 3]]
    after = Draft(DraftTree.chain((1, 2, 3), dists)).after((1,))
    assert (after.tree.tokens, after.tree.parents, after.tree.drawn_from) == ((2, 3), (-1, 0), (1, 2))
    assert after.tree.dists is dists
