"""The matches, their weights, and the tree that comes of them."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.memory.datastore import START, Datastore, Scope
from crossdraft.drafters.memory.recency import UNLEARNED
from crossdraft.drafters.memory.retrieval import (
    BRANCHES,
    CONTRADICTED,
    OWN,
    OWN_MOST,
    PRUNE,
    RECENT,
    TRUST,
    UNPREDICTED,
    WITHIN,
    find_matches,
    match_weights,
    next_tokens,
    own_matches,
    retrieve,
    reweighted,
    tree_from_matches,
)
from crossdraft.drafters.recycled import RecycledTokens
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree

HERE, THERE, ELSEWHERE = Scope(1, 10), Scope(2, 10), Scope(3, 30)


def tree(store, scope, text, nodes):
    grown = retrieve(store, scope, [START, *text], nodes)
    return list(zip(grown.tree.tokens, grown.tree.parents, strict=True))


def test_nothing_is_predicted_by_an_empty_memory():
    assert tree(Datastore(256), HERE, [], 8) == []


def test_an_answer_once_given_is_predicted_whole():
    store = Datastore(256)
    store.add(HERE, [5, 6, 7, 8])
    assert tree(store, HERE, [], 4) == [(5, -1), (6, 0), (7, 1), (8, 2)]
    assert tree(store, HERE, [5, 6], 2) == [(7, -1), (8, 0)]


def test_behind_a_word_put_for_another_the_text_goes_on():
    store = Datastore(256)
    store.add(HERE, [1, 2, 3, 4, 5])
    assert tree(store, HERE, [1, 2, 99], 2) == [(4, -1), (5, 0)]


def test_answers_that_part_make_a_branch_the_newer_first():
    store = Datastore(256)
    store.add(HERE, [1, 2, 3])
    store.add(HERE, [1, 4, 5])
    grown = tree(store, HERE, [1], 4)
    assert grown[0] == (4, -1)
    assert (2, -1) in grown


def test_the_same_question_is_trusted_more_than_another():
    store = Datastore(256)
    store.add(HERE, [1, 2])
    store.add(ELSEWHERE, [1, 3])
    assert tree(store, THERE, [1], 1) == [(2, -1)]
    assert tree(store, ELSEWHERE, [1], 1) == [(3, -1)]


def test_answers_without_a_clip_are_not_about_the_same_clip():
    store = Datastore(256)
    store.add(Scope(0, 30), [1, 3])
    store.add(Scope(0, 10), [1, 2])
    trust = dict(zip(*find_matches(store, Scope(0, 10), [START, 1]), strict=True))
    assert (trust[2], trust[5]) == (TRUST[2], TRUST[1])  # the positions of 3 and of 2


def test_weights_by_hand():
    """What differs in the last token but one: e^-2.5, times the age's part and the scope's."""
    store = Datastore(256)
    store.add(HERE, [7, 8, 9])
    store.add(ELSEWHERE, [7, 8, 9])
    positions, trust = np.array([3, 3]), np.array([1.0, 0.5])
    weights = match_weights(store, positions, trust, [4, 8], HERE.question)
    assert weights.tolist() == pytest.approx([math.exp(-2.5), math.exp(-2.5) / 2])  # the newest to its question
    weights = match_weights(store, positions, trust, [4, 8], ELSEWHERE.question)
    age = 2 ** -(UNLEARNED * WITHIN)  # the newest but one of all
    assert weights.tolist() == pytest.approx([math.exp(-2.5) * age, math.exp(-2.5) * age / 2])
    weights = match_weights(store, np.array([1]), np.array([1.0]), [START], ELSEWHERE.question)
    assert weights.tolist() == pytest.approx([2**-UNLEARNED])  # at an answer's start age counts in full


def test_ages_are_counted_in_answers_to_the_question():
    store = Datastore(256)
    for scope in (HERE, ELSEWHERE, ELSEWHERE, HERE):
        store.add(scope, [1])
    starts = np.array([1, 3, 5, 7])
    assert store.ages(starts, HERE.question).tolist() == [2, 3, 2, 1]
    assert store.ages(starts, ELSEWHERE.question).tolist() == [4, 2, 1, 1]
    assert store.ages(starts, 12345).tolist() == [4, 3, 2, 1]


def test_an_answer_that_repeats_itself_is_predicted_by_itself():
    """Nothing is stored: the answer's own words vote, and what leads up to its end begins again there."""
    assert tree(Datastore(256), HERE, [5, 6, 7, 5, 6], 4) == [(7, -1), (5, 0), (6, 1), (7, 2)]
    assert tree(Datastore(256), HERE, [5, 6, 7], 4) == []


def test_an_answer_is_trusted_more_than_the_newest_one_about_its_clip():
    store = Datastore(256)
    said = list(range(20, 40))
    store.add(HERE, [*said, 3])
    assert tree(store, HERE, [*said, 8, *said], 1) == [(8, -1)]
    (own,) = own_matches([START, 2, 2], 1)[1].tolist()  # after the first 2: [nothing, START, 2]
    assert own == pytest.approx(math.exp(-2.5 - 1.25) * OWN)


def test_only_the_newest_of_an_answer_is_looked_through():
    text = [START, 7, 8, *range(100, 100 + RECENT), 7]
    assert len(own_matches(text, 4)[0]) == 0
    assert own_matches([*text[:-5], 7], 4)[0].tolist() == [[8, 100, 101, 102]]
    assert len(own_matches([START, *[7] * 100], 4)[0]) == OWN_MOST


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), max_size=30), st.integers(1, 40))
def test_it_is_a_tree_of_distinct_siblings_best_first(answers, nodes):
    store = Datastore(256)
    for tokens in answers:
        store.add(HERE, tokens)
    grown = retrieve(store, HERE, [START, *(answers[0][:3] if answers else ())], nodes)
    assert len(grown.tree.tokens) <= nodes
    assert len(set(zip(grown.tree.parents, grown.tree.tokens, strict=True))) == len(grown.tree.tokens)
    assert all(parent < node for node, parent in enumerate(grown.tree.parents))
    assert list(grown.path_probs) == sorted(grown.path_probs, reverse=True)
    for node, parent in enumerate(grown.tree.parents):
        assert 0 < grown.path_probs[node] <= (1 if parent < 0 else grown.path_probs[parent])
    for parent in {-1, *grown.tree.parents}:  # siblings share what reaches their parent
        shares = sum(grown.path_probs[node] for node, above in enumerate(grown.tree.parents) if above == parent)
        assert shares <= (1 if parent < 0 else grown.path_probs[parent]) + 1e-9


def test_a_tree_by_hand():
    """Two matches of weights 3 and 1 agree on a first token; after it each goes its own way."""
    grown = tree_from_matches(np.array([[5, 6], [5, 7]], np.int32), np.array([3.0, 1.0]), 9, 0.0)
    total = 4 + UNPREDICTED
    assert (grown.tree.tokens, grown.tree.parents) == ((5, 6, 7), (-1, 0, 0))
    first = 4 / total
    assert grown.path_probs == pytest.approx((first, first * 3 / total, first * 1 / total))


def test_a_contradicted_match_keeps_its_rank_among_lighter_ones():
    """After 7, the match of 5 has 0.03 left beside 1; after 5, the match of 7 has 0.01 beside 3 and is dropped."""
    ahead = np.array([[5, 6], [7, 8]], np.int32)
    grown = tree_from_matches(ahead, np.array([3.0, 1.0]), 9, 0.0)
    below = {
        (grown.tree.tokens[parent], token)
        for token, parent in zip(grown.tree.tokens, grown.tree.parents, strict=True)
        if parent >= 0
    }
    assert below == {(5, 6), (7, 8), (7, 6)}


def test_next_tokens_by_hand():
    matches = [(4.0, 3), (3.0, 2), (2.0, 1), (1.0, 0)]
    total = 10 + UNPREDICTED
    assert next_tokens(matches, [5, 6, 5, -1]) == [(5, 4 / total, [(3.0, 2), (1.0, 0)]), (6, 2 / total, [(2.0, 1)])]
    assert next_tokens([(4.0, 1)], [5, 6]) == [(6, 4 / (4 + UNPREDICTED), [(4.0, 1)])]
    assert next_tokens([(4.0, 1)], [5, -1]) == []


def test_matches_behind_a_token_by_hand():
    """Of 2 after 5: least is 0.04; the agreeing 0.03 goes, and of the others 10 and 4.1 have more than that left."""
    matches = [(10.0, 0), (4.1, 1), (3.9, 2), (2.0, 3), (0.03, 4)]
    stays = reweighted(matches, [(2.0, 3), (0.03, 4)], [6, 7, 7, 5, 5])
    assert stays == [(2.0, 3), (10.0 * CONTRADICTED, 0), (4.1 * CONTRADICTED, 1)]
    matches = [(1000.0, 0), (2.0, 1)]  # whoever was heavy enough is the heaviest still
    assert reweighted(matches, [(2.0, 1)], [6, 5]) == [(1000.0 * CONTRADICTED, 0), (2.0, 1)]


LIKELIEST = st.lists(st.integers(0, 9), max_size=4, unique=True)


def plain(ahead, weights, nodes, faintest, recycled):
    """What `tree_from_matches` must give, in the plainest way: every weight is worked out anew along every path."""
    tree, positions = {(): -1}, []

    def children(path):
        """(token, share) after a path: Bayes along it, then the mixture."""
        weighed = dict(enumerate(weights))
        for depth, token in enumerate(path):
            weighed = {
                row: weight * (1.0 if ahead[row][depth] == token else CONTRADICTED) for row, weight in weighed.items()
            }
            most = max(weighed.values())
            weighed = {row: weight for row, weight in weighed.items() if weight > most * PRUNE}
        if len(path) == len(ahead[0]):
            return []
        counted = {}
        for row, weight in weighed.items():
            counted[ahead[row][len(path)]] = counted.get(ahead[row][len(path)], 0.0) + weight
        total = sum(counted.values()) + UNPREDICTED
        for token, share in recycled.next_tokens(path).items():
            counted[token] = counted.get(token, 0.0) + UNPREDICTED * share
        best = sorted(counted.items(), key=lambda one: -one[1])[:BRANCHES]
        return [(token, weight / total) for token, weight in best if token >= 0]

    leaves = [((token,), share) for token, share in children(())]
    while len(positions) < nodes:
        leaves = [leaf for leaf in leaves if leaf[1] >= faintest]
        if not leaves:
            break
        path, chance = leaves.pop(max(range(len(leaves)), key=lambda at: leaves[at][1]))
        tree[path] = len(positions)
        positions.append((path, chance))
        leaves += [((*path, token), chance * share) for token, share in children(path)]
    nodes = DraftTree([path[-1] for path, _ in positions], [tree[path[:-1]] for path, _ in positions])
    return Draft(nodes, tuple(chance for _, chance in positions))


@given(
    st.integers(1, 12).flatmap(
        lambda matches: st.tuples(
            st.lists(st.lists(st.integers(-1, 3), min_size=6, max_size=6), min_size=matches, max_size=matches),
            st.lists(st.floats(1e-4, 1.0), min_size=matches, max_size=matches, unique=True),
        )
    ),
    st.integers(0, 20),
    st.sampled_from([1e-6, 1e-2]),
    st.dictionaries(st.tuples(st.integers(0, 3)) | st.tuples(st.integers(0, 3), st.integers(0, 3)), LIKELIEST),
    LIKELIEST,
)
def test_it_is_the_tree_that_plain_words_describe(matches, nodes, faintest, after, passed_over):
    """The same path probabilities, and (where no two are as good as equal) the same nodes in the same order."""
    ahead, weights = matches
    recycled = RecycledTokens(after, passed_over, Counter(ahead[0]), (1, 2))
    ours = tree_from_matches(np.array(ahead, np.int32), np.array(weights), nodes, faintest, recycled)
    theirs = plain(ahead, weights, nodes, faintest, recycled)
    assert ours.path_probs == pytest.approx(theirs.path_probs, rel=1e-9)
    if all(a - b > 1e-9 for a, b in zip(theirs.path_probs, theirs.path_probs[1:], strict=False)):
        assert ours.tree.tokens[:-1] == theirs.tree.tokens[:-1]  # the last may be as good as one that was left out
        assert ours.tree.parents[:-1] == theirs.tree.parents[:-1]
