"""The tree that comes of votes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.memory.growth import BRANCHES, CONTRADICTED, PRUNE, UNHEARD, BuiltTree, ballot, grow, persuaded


def test_a_tree_by_hand():
    """Two voters of weights 3 and 1 agree on a first token; behind it each goes its own way."""
    grown = grow(np.array([[5, 6], [5, 7]], np.int32), np.array([3.0, 1.0]), 9, 0.0)
    total = 4 + UNHEARD
    assert (grown.tokens, grown.parents) == ((5, 6, 7), (-1, 0, 0))
    first = 4 / total
    assert grown.path_probs == pytest.approx((first, first * 3 / total, first * 1 / total))


def test_a_contradicted_voter_keeps_its_place_among_lighter_ones():
    """Behind 7, the voter of 5 has 0.03 left beside 1; behind 5, the voter of 7 has 0.01 beside 3 and is dropped."""
    ahead = np.array([[5, 6], [7, 8]], np.int32)
    grown = grow(ahead, np.array([3.0, 1.0]), 9, 0.0)
    below = {
        (grown.tokens[parent], token) for token, parent in zip(grown.tokens, grown.parents, strict=True) if parent >= 0
    }
    assert below == {(5, 6), (7, 8), (7, 6)}


def test_a_ballot_by_hand():
    crowd = [(4.0, 3), (3.0, 2), (2.0, 1), (1.0, 0)]
    total = 10 + UNHEARD
    assert ballot(crowd, [5, 6, 5, -1]) == [(5, 4 / total, [(3.0, 2), (1.0, 0)]), (6, 2 / total, [(2.0, 1)])]
    assert ballot([(4.0, 1)], [5, 6]) == [(6, 4 / (4 + UNHEARD), [(4.0, 1)])]
    assert ballot([(4.0, 1)], [5, -1]) == []


def test_whom_a_token_leaves_by_hand():
    """Of 2 behind 5: least is 0.04; the 0.03 of the camp goes, and of the others 10 and 4.1 have more than it left."""
    crowd = [(10.0, 0), (4.1, 1), (3.9, 2), (2.0, 3), (0.03, 4)]
    stays = persuaded(crowd, [(2.0, 3), (0.03, 4)], [6, 7, 7, 5, 5])
    assert stays == [(2.0, 3), (10.0 * CONTRADICTED, 0), (4.1 * CONTRADICTED, 1)]
    crowd = [(1000.0, 0), (2.0, 1)]  # whoever was heavy enough is the heaviest still
    assert persuaded(crowd, [(2.0, 1)], [6, 5]) == [(1000.0 * CONTRADICTED, 0), (2.0, 1)]


def plain(ahead, weights, nodes, faintest):
    """What `grow` must give, said in the plainest way: everybody's weight is worked out anew along every path."""
    tree, places = {(): -1}, []

    def children(path):
        """(token, share) behind a path: Bayes along it, then everybody's vote."""
        heard = dict(enumerate(weights))
        for depth, token in enumerate(path):
            heard = {
                row: weight * (1.0 if ahead[row][depth] == token else CONTRADICTED) for row, weight in heard.items()
            }
            most = max(heard.values())
            heard = {row: weight for row, weight in heard.items() if weight > most * PRUNE}
        if len(path) == len(ahead[0]):
            return []
        votes = {}
        for row, weight in heard.items():
            votes[ahead[row][len(path)]] = votes.get(ahead[row][len(path)], 0.0) + weight
        total = sum(votes.values()) + UNHEARD
        best = sorted(votes.items(), key=lambda vote: -vote[1])[:BRANCHES]
        return [(token, weight / total) for token, weight in best if token >= 0]

    leaves = [((token,), share) for token, share in children(())]
    while len(places) < nodes:
        leaves = [leaf for leaf in leaves if leaf[1] >= faintest]
        if not leaves:
            break
        path, chance = leaves.pop(max(range(len(leaves)), key=lambda at: leaves[at][1]))
        tree[path] = len(places)
        places.append((path, chance))
        leaves += [((*path, token), chance * share) for token, share in children(path)]
    return BuiltTree(
        tuple(path[-1] for path, _ in places),
        tuple(tree[path[:-1]] for path, _ in places),
        tuple(chance for _, chance in places),
    )


@given(
    st.integers(1, 12).flatmap(
        lambda voters: st.tuples(
            st.lists(st.lists(st.integers(-1, 3), min_size=6, max_size=6), min_size=voters, max_size=voters),
            st.lists(st.floats(1e-4, 1.0), min_size=voters, max_size=voters, unique=True),
        )
    ),
    st.integers(0, 20),
    st.sampled_from([1e-6, 1e-2]),
)
def test_it_is_the_tree_that_plain_words_describe(voters, nodes, faintest):
    """The same reaches, and (where no two are as good as equal) the same nodes in the same order."""
    ahead, weights = voters
    ours = grow(np.array(ahead, np.int32), np.array(weights), nodes, faintest)
    theirs = plain(ahead, weights, nodes, faintest)
    assert ours.path_probs == pytest.approx(theirs.path_probs, rel=1e-9)
    if all(a - b > 1e-9 for a, b in zip(theirs.path_probs, theirs.path_probs[1:], strict=False)):
        assert ours.tokens[:-1] == theirs.tokens[:-1]  # the last may be as good as one that was left out
        assert ours.parents[:-1] == theirs.parents[:-1]
