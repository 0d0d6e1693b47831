"""Several trees as one, by hand and against all nodes ranked."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.combine.tree_merger import DrafterWeight, conditional, learn, merged
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree


def test_chances_given_the_parent_by_hand():
    tree = DraftTree.from_paths([[1, 2], [3]])
    assert conditional(Draft(tree, (0.5, 0.2, 0.3))) == pytest.approx([0.5, 0.4, 0.3])
    assert conditional(Draft(tree, (0.5, 0.2, 0.3)), 0.5) == pytest.approx([0.25, 0.2, 0.15])
    # Corrected upwards, siblings still share no more than 1.
    assert conditional(Draft(tree, (0.6, 0.6, 0.4)), 1.2) == pytest.approx([0.6, 1.0, 0.4])
    assert conditional(Draft(DraftTree.chain([1, 2]))) == pytest.approx([0.7, 0.7])


def test_where_they_disagree_the_better_one_is_followed_first():
    trees = [DraftTree.chain([1, 2]), DraftTree.chain([3, 4])]
    draft = merged(trees, [[0.9, 0.9], [0.9, 0.9]], [9.0, 1.0], 4)
    assert draft.tree.tokens == (1, 2, 3, 4)
    assert draft.path_probs == pytest.approx((0.81, 0.729, 0.09, 0.081))


def test_where_only_one_has_an_opinion_it_counts_whole():
    draft = merged([DraftTree.chain([1, 2]), DraftTree.chain([1])], [[0.9, 0.5], [0.5]], [1.0, 1.0], 9)
    assert draft.tree.tokens == (1, 2)
    assert draft.path_probs == pytest.approx((0.7, 0.35))


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=4)


@given(paths, paths, st.integers(0, 12), st.randoms())
def test_it_is_the_likeliest_part_of_the_whole_mixture(left, right, nodes, random):
    trees = [DraftTree.from_paths(left), DraftTree.from_paths(right)]
    drafts = []
    for tree in trees:
        reach: list[float] = []
        for parent in tree.parents:
            reach.append((1.0 if parent < 0 else reach[parent]) * (0.1 + 0.8 * random.random()))
        drafts.append(Draft(tree, tuple(reach)))
    chances, weights = [conditional(draft) for draft in drafts], [2.0, 1.0]
    some, whole = merged(trees, chances, weights, nodes), merged(trees, chances, weights, 99)
    texts = {tuple(tree.path_tokens(node)) for tree in trees for node in range(len(tree))}
    assert {tuple(whole.tree.path_tokens(node)) for node in range(len(whole.tree))} == texts
    assert list(some.path_probs) == sorted(whole.path_probs, reverse=True)[:nodes]
    for parent in range(-1, len(whole.tree)):
        below = sum(whole.path_probs[child] for child in whole.tree.children(parent))
        assert below <= (1 if parent < 0 else whole.path_probs[parent]) + 1e-9


def test_what_is_learned_by_hand():
    """Place by place along 1, 2: they agree on 1, then one says 2 and the other 3."""
    trees = [DraftTree.chain([1, 2]), DraftTree.chain([1, 3])]
    ones = [DrafterWeight(1.0, 1.0, 1.0), DrafterWeight(1.0, 1.0, 1.0)]
    learn(ones, trees, [[0.8, 0.5], [0.6, 0.4]], [1, 2])
    assert ones[0].wins == pytest.approx(1.98)
    assert ones[1].wins == pytest.approx(0.98)
    assert ones[0].right == pytest.approx((1 * 0.98 + 1) * 0.98 + 1)
    assert ones[1].right == pytest.approx((1 * 0.98 + 1) * 0.98)
    assert ones[0].expected == pytest.approx((1 * 0.98 + 0.8) * 0.98 + 0.5)


def test_a_word_that_nobody_had_says_nothing_of_who_is_better():
    trees = [DraftTree.chain([1]), DraftTree.chain([2])]
    ones = [DrafterWeight(), DrafterWeight()]
    learn(ones, trees, [[0.9], [0.9]], [3, 1, 2])
    assert [one.wins for one in ones] == [1.0, 1.0]
    assert all(one.right < one.expected for one in ones)


def test_the_order_of_drafters_changes_nothing_but_ties():
    trees = [DraftTree.chain([1, 2]), DraftTree.chain([1, 4]), DraftTree.chain([5])]
    chances, weights = [[0.9, 0.5], [0.5, 0.8], [0.3]], [1.0, 2.0, 3.0]
    found = set()
    for order in itertools.permutations(range(3)):
        draft = merged([trees[i] for i in order], [chances[i] for i in order], [weights[i] for i in order], 9)
        found.add((draft.tree.tokens, draft.tree.parents, tuple(round(chance, 9) for chance in draft.path_probs)))
    assert len(found) == 1
