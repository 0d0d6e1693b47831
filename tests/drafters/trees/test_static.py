import pytest

from crossdraft.drafters.trees.builder import TopK
from crossdraft.drafters.trees.static import fill
from crossdraft.engine.drafter import Budget
from crossdraft_lab.train.heads.ranks import shape_of
from tests.drafters.trees.languages import says, table
from tests.engine.drafting import Language

#  root ─┬─ 0 ─┬─ 00
#        └─ 1  └─ 01 ── 010
SHAPE = shape_of([[0], [1], [0, 0], [0, 1], [0, 1, 0]])
ROWS = {(): [0.2, 0.5, 0.3], (1,): [0.1, 0.3, 0.6], (1, 1): [1.0, 0.0, 0.0], (2,): [0.9, 0.1, 0.0]}


def grown(shape, budget, rows=ROWS):
    return fill(shape, table(rows), TopK(), budget)


def paths(tree):
    return {tuple(tree.path_tokens(node)) for node in range(len(tree))}


def test_by_hand():
    found = grown(SHAPE, Budget(9))
    # best first: 1 (.5), 12 (.3) and 2 (.3; elder, hence before), 11 (.15), 110 (.15)
    assert [tuple(found.tree.path_tokens(node)) for node in range(5)] == [(1,), (2,), (1, 2), (1, 1), (1, 1, 0)]
    assert found.path_probs == pytest.approx((0.5, 0.3, 0.3, 0.15, 0.15))
    assert found.ranks == (0, 1, 0, 1, 0)


def test_of_a_larger_shape_the_first_nodes():
    assert paths(grown(SHAPE, Budget(3)).tree) == {(1,), (2,), (1, 2)}
    assert len(grown(SHAPE, Budget(0)).tree) == 0


def test_nothing_behind_an_unlikely_node():
    assert paths(grown(SHAPE, Budget(9, min_confidence=0.2)).tree) == {(1,), (2,), (1, 2), (1, 1)}


def test_nothing_after_the_end_nor_next_to_an_only_token():
    rows = {(): [0.0, 1.0, 0.0]}
    assert paths(grown(SHAPE, Budget(9), rows).tree) == {(1,)}


def test_a_stop_ends_it_between_levels():
    answers = iter([False, True])
    assert paths(grown(SHAPE, Budget(9, stop=lambda: next(answers))).tree) == {(1,), (2,)}


def test_the_main_chain_is_reported_as_it_appears():
    received = []
    grown(SHAPE, Budget(9, on_token=received.append), {**ROWS, (1, 2): [0.0, 0.0, 1.0]})
    assert received == [1, 2]  # the shape goes on below the second guess only


def test_ranks_may_leave_gaps_where_tokens_are_chosen():
    found = fill(shape_of([[2], [2, 1]]), says(Language(4, seed=3)), TopK(), Budget(9))
    expected = Language(4, seed=3)(()).topk(3).indices[2].item()
    assert found.tree.tokens[0] == expected
    assert found.ranks == (2, 1)
