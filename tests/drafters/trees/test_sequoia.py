"""The dynamic programme against all trees there are."""

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.trees.builder import TopK
from crossdraft.drafters.trees.sequoia import DEEPEST, ShapeTable, best_shape, sequoia_tree
from crossdraft.drafters.trees.static import Shape
from crossdraft.engine.drafter import Budget
from tests.drafters.trees.languages import table


def expected_emitted(shape: Shape, accepted: Sequence[float]) -> float:
    """F of any shape, straight from its definition."""
    return 1 + sum(math.prod(accepted[rank] for rank in path) for path in shape.paths)


def forests(nodes: int, depth: int, width: int) -> Iterator[list[list[int]]]:
    """All trees of so many nodes: paths of ranks, siblings having ranks 0, 1, …"""
    if nodes == 0:
        yield []
    if nodes <= 0 or depth == 0:
        return

    def families(left: int, rank: int) -> Iterator[list[list[int]]]:
        if left == 0:
            yield []
        elif rank < width:
            for size in range(1, left + 1):
                for inner in forests(size - 1, depth - 1, width):
                    child = [[rank], *([rank, *path] for path in inner)]
                    for others in families(left - size, rank + 1):
                        yield child + others

    yield from families(nodes, 0)


ALL = {
    (nodes, depth, width): [Shape.from_paths(paths) for paths in forests(nodes, depth, width)]
    for nodes in range(6)
    for depth in range(1, 5)
    for width in range(1, 4)
}


def test_all_trees_are_there():
    assert len(ALL[5, 4, 3]) < len(list(forests(5, 5, 5))) == 42  # Catalan
    assert len({shape.paths for shape in ALL[5, 4, 3]}) == len(ALL[5, 4, 3])


chances = st.floats(0, 1)


@given(st.lists(chances, min_size=1, max_size=3), st.integers(0, 5), st.integers(1, 4))
def test_no_tree_beats_the_tables(accepted, nodes, depth):
    shapes = ShapeTable(tuple(accepted), nodes, depth)
    rivals = [expected_emitted(shape, accepted) for shape in ALL[nodes, depth, len(accepted)]]
    if not rivals:
        assert shapes.emitted(nodes, depth) == -float("inf")
        return
    shape = shapes.shape(nodes, depth)
    assert len(shape) == nodes
    assert shape.depth <= depth
    assert shapes.emitted(nodes, depth) == pytest.approx(max(rivals))
    assert expected_emitted(shape, accepted) == pytest.approx(max(rivals))


@given(st.lists(chances, min_size=1, max_size=3), st.integers(0, 4))
def test_of_all_sizes_the_best_is_filled(accepted, nodes):
    rivals = [shape for size in range(nodes + 1) for shape in ALL[size, 4, len(accepted)]]
    best = max(expected_emitted(shape, accepted) for shape in rivals)
    assert expected_emitted(best_shape(tuple(accepted), nodes), accepted) == pytest.approx(best)


def test_by_hand():
    # p = (0.5, 0.4): two siblings add 0.9, a chain of two 0.75; a third node does best below the first (0.25 > 0.2).
    shapes = ShapeTable((0.5, 0.4), 3, 2)
    assert shapes.shape(2, 2).paths == ((0,), (1,))
    assert shapes.emitted(2, 2) == pytest.approx(1.9)
    assert shapes.shape(3, 2).paths == ((0,), (1,), (0, 0))
    assert shapes.emitted(3, 2) == pytest.approx(2.15)
    assert shapes.emitted(3, 1) == -float("inf")  # three siblings, but two ranks


def test_a_rank_that_is_never_accepted_does_not_hide_what_is_impossible():
    shapes = ShapeTable((0.0,), 3, 2)
    assert shapes.emitted(2, 2) == 1
    assert shapes.emitted(2, 1) == shapes.emitted(3, 2) == -float("inf")


def test_a_sure_drafter_gets_a_chain_and_a_useless_one_nothing():
    assert best_shape((0.95, 0.02), 4).paths == ((0,), (0,) * 2, (0,) * 3, (0,) * 4)
    assert len(best_shape((0.0, 0.0), 4)) == 0
    assert len(best_shape((), 4)) == 0
    assert best_shape((0.99,), 30).depth == DEEPEST


def test_the_shape_is_filled_with_the_drafters_tokens():
    rows = {(): [0.2, 0.5, 0.3], (1,): [0.1, 0.3, 0.6], (2,): [0.9, 0.1, 0.0]}
    built = sequoia_tree(table(rows), TopK(), Budget(3), (0.5, 0.4))
    paths = {tuple(built.tree.path_tokens(node)) for node in range(len(built.tree))}
    assert paths == {(1,), (2,), (1, 2)}  # two siblings, and the likeliest after the first
