"""The dynamic programme against all trees there are."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.trees import Shape, ShapeTable, cheapest_shape
from crossdraft.drafters.trees.sequoia import expected_emitted


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
    table = ShapeTable(tuple(accepted), nodes, depth)
    rivals = [expected_emitted(shape, accepted) for shape in ALL[nodes, depth, len(accepted)]]
    if not rivals:
        assert table.emitted(nodes, depth) == -float("inf")
        return
    shape = table.shape(nodes, depth)
    assert len(shape) == nodes
    assert shape.depth <= depth
    assert table.emitted(nodes, depth) == pytest.approx(max(rivals))
    assert expected_emitted(shape, accepted) == pytest.approx(max(rivals))


@given(st.lists(chances, min_size=1, max_size=3), st.floats(0, 2), st.floats(0, 1), st.integers(0, 4))
def test_no_tree_is_cheaper_than_the_chosen_one(accepted, step, slope, nodes):
    def verify(new):
        return 1 + slope * (new - 1)

    def time(shape):
        drafting = step * shape.depth
        return (drafting + verify(len(shape) + 1)) / expected_emitted(shape, accepted)

    chosen = cheapest_shape(ShapeTable(tuple(accepted), nodes, 3), step, verify)
    rivals = [shape for size in range(nodes + 1) for shape in ALL[size, 3, len(accepted)]]
    assert time(chosen) == pytest.approx(min(map(time, rivals)))


def test_by_hand():
    # p = (0.5, 0.4): two siblings add 0.9, a chain of two 0.75; a third node does best below the first (0.25 > 0.2).
    table = ShapeTable((0.5, 0.4), 3, 2)
    assert table.shape(2, 2).paths == ((0,), (1,))
    assert table.emitted(2, 2) == pytest.approx(1.9)
    assert table.shape(3, 2).paths == ((0,), (1,), (0, 0))
    assert table.emitted(3, 2) == pytest.approx(2.15)
    assert table.emitted(3, 1) == -float("inf")  # three siblings, but two ranks


def test_a_rank_that_is_never_accepted_does_not_hide_what_is_impossible():
    table = ShapeTable((0.0,), 3, 2)
    assert table.emitted(2, 2) == 1
    assert table.emitted(2, 1) == table.emitted(3, 2) == -float("inf")


def test_a_sure_drafter_gets_a_chain_and_a_useless_or_slow_one_nothing():
    def verify(new):
        return 1 + 0.1 * (new - 1)

    assert cheapest_shape(ShapeTable((0.95, 0.02), 4, 4), 0.01, verify).paths == ((0,), (0,) * 2, (0,) * 3, (0,) * 4)
    assert len(cheapest_shape(ShapeTable((0.0, 0.0), 4, 4), 0.01, verify)) == 0
    assert len(cheapest_shape(ShapeTable((0.95, 0.02), 4, 4), 9.0, verify)) == 0
    assert len(cheapest_shape(ShapeTable((), 4, 4), 0.01, verify)) == 0
