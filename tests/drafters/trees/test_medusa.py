import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.trees.static import Shape, greedy_shape
from crossdraft_lab.train.heads.ranks import shape_of

ACCURACIES = [[0.6, 0.3], [0.5, 0.2], [0.4, 0.1]]


def expected_accepted(shape, accuracies):
    """Accepted tokens to be expected of a shape, the bonus not counted, straight from the definition."""
    return sum(math.prod(accuracies[depth][rank] for depth, rank in enumerate(path)) for path in shape.paths)


def test_by_hand():
    # [0] adds .6; [1] and [0, 0] .3 each; then [1, 0] .15, [0, 1] and [0, 0, 0] .12 each, [1, 1] .06.
    shape = greedy_shape(ACCURACIES, 6)
    assert shape.paths == ((0,), (0, 0), (1,), (1, 0), (0, 0, 0), (0, 1))
    assert expected_accepted(shape, ACCURACIES) == pytest.approx(0.6 + 0.3 + 0.3 + 0.15 + 0.12 + 0.12)
    assert all(greedy_shape(ACCURACIES, count) == shape.first(count) for count in range(6))


def test_nodes_without_a_chance_are_left_out():
    assert greedy_shape([[0.5, 0.0], [0.0]], 9).paths == ((0,),)
    assert len(greedy_shape([], 3)) == 0


def test_a_better_later_rank_comes_first():
    assert greedy_shape([[0.1, 0.7]], 2).paths == ((1,), (0,))


def every(accuracies: list[list[float]], count: int) -> list[Shape]:
    """All trees of `count` nodes, by growing all smaller ones in every way."""
    grown = {frozenset()}
    for _ in range(count):
        grown = {
            tree | {(*path, rank)}
            for tree in grown
            for path in [(), *tree]
            if len(path) < len(accuracies)
            for rank in range(len(accuracies[len(path)]))
            if (*path, rank) not in tree
        }
    return [shape_of(list(tree)) for tree in grown]


chances = st.floats(0.01, 1)


@given(st.lists(st.lists(chances, min_size=1, max_size=2), min_size=1, max_size=3), st.integers(1, 4))
def test_no_tree_beats_the_greedy_one(accuracies, count):
    found = greedy_shape(accuracies, count)
    rivals = every(accuracies, len(found))
    best = max(expected_accepted(shape, accuracies) for shape in rivals)
    assert expected_accepted(found, accuracies) == pytest.approx(best)
    assert len(found) == count or not every(accuracies, len(found) + 1)
