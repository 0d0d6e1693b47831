import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError


@st.composite
def trees(draw):
    size = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tokens = tuple(draw(st.integers(0, 4)) for _ in range(size))
    return DraftTree(tokens, parents)


def test_the_tree_of_the_module_text():
    tree = DraftTree((0, 1, 2, 3), (-1, 0, 0, -1))
    assert tree.depths == (1, 2, 2, 1)
    assert tree.depth == 2
    assert tree.children(-1) == [0, 3]
    assert tree.children(0) == [1, 2]
    assert tree.path(2) == [0, 2]
    assert tree.path(-1) == []
    assert tree.visible.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, False],
        [False, False, False, True],
    ]


def test_a_chain_sees_everything_before_it():
    tree = DraftTree.chain([7, 8, 9])
    assert tree.is_chain
    assert torch.equal(tree.visible, torch.ones(3, 3, dtype=torch.bool).tril())
    assert DraftTree.empty().is_chain
    assert DraftTree.empty().depth == 0


def test_union_merges_equal_prefixes_and_keeps_the_first_origin():
    sampled = DraftTree.chain([5, 6], torch.eye(8)[[5, 6]])
    both = sampled.union(DraftTree.from_paths([[5, 7], [1]]))
    assert both.tokens == (5, 6, 7, 1)
    assert both.parents == (-1, 0, 0, -1)
    assert both.drawn_from == (0, 1, -1, -1)


def test_union_of_two_sampled_trees_renumbers_the_second_ones_distributions():
    one, two = DraftTree.chain([5], torch.eye(8)[[5]]), DraftTree.chain([6], torch.eye(8)[[6]])
    both = one.union(two)
    assert both.drawn_from == (0, 1)
    assert both.dists is not None
    assert torch.equal(both.dists, torch.eye(8)[[5, 6]])


@pytest.mark.parametrize(
    ("tokens", "parents", "drawn_from"),
    [((1, 2), (-1,), ()), ((1,), (0,), ()), ((1, 2), (1, -1), ()), ((1,), (-2,), ()), ((1,), (-1,), (0,))],
)
def test_malformed_trees_are_refused(tokens, parents, drawn_from):
    with pytest.raises(CrossdraftError):
        DraftTree(tokens, parents, None, drawn_from)


@given(trees())
def test_a_node_sees_exactly_its_own_path(tree):
    for node in range(len(tree)):
        assert tree.visible[node].nonzero().flatten().tolist() == sorted(tree.path(node))
        assert len(tree.path(node)) == tree.depths[node]


tries = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5).map(DraftTree.from_paths)


@given(tries, tries)
def test_union_holds_every_path_of_both_once(one, two):
    def paths(tree):
        return {tuple(tree.path_tokens(node)) for node in range(len(tree))}

    both = one.union(two)
    assert paths(both) == paths(one) | paths(two)
    assert len(both) == len(paths(both))


@given(trees(), st.integers(0, 12))
def test_the_first_nodes_are_a_tree_again(tree, count):
    part = tree.first(count)
    assert len(part) == min(count, len(tree))
    assert torch.equal(part.visible, tree.visible[:count, :count])


def test_kept_nodes_are_numbered_anew():
    tree = DraftTree((5, 6, 7, 8), (-1, 0, 0, -1), torch.eye(3), (0, 1, 1, 2))
    part = tree.keep([3, 0, 2])
    assert (part.tokens, part.parents, part.drawn_from) == ((8, 5, 7), (-1, -1, 1), (2, 0, 1))
    assert part.dists is tree.dists
    assert len(tree.keep([])) == 0


@pytest.mark.parametrize("nodes", [[1], [1, 0], [0, 0]])
def test_a_node_is_kept_once_and_after_its_parent(nodes):
    with pytest.raises(CrossdraftError, match="cannot be kept"):
        DraftTree((5, 6), (-1, 0)).keep(nodes)


@given(trees(), st.data())
def test_kept_nodes_see_each_other_as_before(tree, data):
    kept = []
    for node, parent in enumerate(tree.parents):
        if (parent < 0 or parent in kept) and data.draw(st.booleans()):
            kept.append(node)
    assert torch.equal(tree.keep(kept).visible, tree.visible[kept][:, kept])


def test_the_main_path_is_the_path_of_first_children():
    tree = DraftTree((5, 6, 7, 8), (-1, -1, 0, 2))
    assert tree.main_path == [0, 2, 3]
    assert tree.main_path_tokens == (5, 7, 8)
    assert DraftTree.empty().main_path == []


def test_tokens_are_followed_as_far_as_the_tree_goes():
    tree = DraftTree.from_paths([[1, 2], [1, 3]])
    assert tree.follow([1, 3, 4]) == [0, 2]
    assert tree.follow([5]) == []


def test_lists_are_taken_for_tuples():
    given = DraftTree([5, 6], [-1, 0], drawn_from=[-1, -1])  # pyright: ignore[reportArgumentType]
    assert given == DraftTree((5, 6), (-1, 0))
    assert given.is_chain
