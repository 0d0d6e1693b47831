import pytest

from crossdraft.drafters.trees.static import Shape
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.heads.ranks import shape_of


def test_paths_parents_and_families_by_hand():
    #  root ─┬─ 0 ─┬─ 2
    #        └─ 1  └─ 3 ── 4
    shape = Shape((-1, -1, 0, 0, 3), (0, 1, 0, 2, 0))
    assert shape.paths == ((0,), (1,), (0, 0), (0, 2), (0, 2, 0))
    assert shape.depth == 3
    assert shape.families == ({-1: (0, 1)}, {0: (2, 3)}, {3: (4,)})
    assert shape.first(2) == Shape((-1, -1), (0, 1))
    assert shape_of(shape.paths[::-1]) == shape


def test_a_family_stands_in_the_order_of_its_ranks():
    assert Shape((-1, -1), (1, 0)).families == ({-1: (1, 0)},)


def test_no_shape_at_all():
    assert len(Shape((), ())) == Shape((), ()).depth == 0
    assert shape_of([]) == Shape((), ())


@pytest.mark.parametrize(
    ("parents", "ranks"), [((0,), (0,)), ((-1,), ()), ((-1, -1), (0, 0)), ((-1,), (-1,)), ((-2,), (0,))]
)
def test_malformed_shapes_are_refused(parents, ranks):
    with pytest.raises(CrossdraftError):
        Shape(parents, ranks)


def test_a_path_without_its_parent_is_refused():
    with pytest.raises(CrossdraftError, match=r"\[0, 1\] without its parent"):
        shape_of([[0, 1]])
