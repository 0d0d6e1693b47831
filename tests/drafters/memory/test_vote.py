"""Who votes, with what weight, and the tree that comes of it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.memory.store import START, Scope, Store
from crossdraft.drafters.memory.vote import OLD, UNHEARD, ballot, foresee, grow, weigh

HERE, THERE, ELSEWHERE = Scope(1, 10), Scope(2, 10), Scope(3, 30)


def tree(store, scope, text, nodes):
    grown = foresee(store, scope, [START, *text], nodes)
    return list(zip(grown.tokens, grown.parents, strict=True))


def test_nothing_is_foreseen_by_an_empty_memory():
    assert tree(Store(256), HERE, [], 8) == []


def test_an_answer_once_given_is_foreseen_whole():
    store = Store(256)
    store.add(HERE, [5, 6, 7, 8])
    assert tree(store, HERE, [], 4) == [(5, -1), (6, 0), (7, 1), (8, 2)]
    assert tree(store, HERE, [5, 6], 2) == [(7, -1), (8, 0)]


def test_behind_a_word_put_for_another_the_text_goes_on():
    store = Store(256)
    store.add(HERE, [1, 2, 3, 4, 5])
    assert tree(store, HERE, [1, 2, 99], 2) == [(4, -1), (5, 0)]


def test_answers_that_part_make_a_branch_the_newer_first():
    store = Store(256)
    store.add(HERE, [1, 2, 3])
    store.add(HERE, [1, 4, 5])
    grown = tree(store, HERE, [1], 4)
    assert grown[0] == (4, -1)
    assert (2, -1) in grown


def test_the_same_question_is_trusted_more_than_another():
    store = Store(256)
    store.add(HERE, [1, 2])
    store.add(ELSEWHERE, [1, 3])
    assert tree(store, THERE, [1], 1) == [(2, -1)]
    assert tree(store, ELSEWHERE, [1], 1) == [(3, -1)]


def test_weights_by_hand():
    """A place that differs in the last token but one: e^-2.5, times the age's part and the scope's."""
    store = Store(256)
    store.add(HERE, [7, 8, 9])
    weights = weigh(store, np.array([3, 3]), np.array([1.0, 0.5]), [4, 8])
    age = 0.5 ** (1 / 10) + OLD
    assert weights.tolist() == pytest.approx([math.exp(-2.5) * age, math.exp(-2.5) * age / 2])


def test_a_tree_by_hand():
    """Two voters of weights 3 and 1 agree on a first token; behind it each goes its own way."""
    grown = grow(np.array([[5, 6], [5, 7]], np.int32), np.array([3.0, 1.0]), 9, 0.0)
    total = 4 + UNHEARD
    assert (grown.tokens, grown.parents) == ((5, 6, 7), (-1, 0, 0))
    first = 4 / total
    assert grown.reach == pytest.approx((first, first * 3 / total, first * 1 / total))


def test_a_contradicted_voter_keeps_its_place_among_lighter_ones():
    """Behind 7, the voter of 5 has 0.03 left beside 1; behind 5, the voter of 7 has 0.01 beside 3 and is dropped."""
    ahead = np.array([[5, 6], [7, 8]], np.int32)
    grown = grow(ahead, np.array([3.0, 1.0]), 9, 0.0)
    below = {
        (grown.tokens[parent], token)
        for token, parent in zip(grown.tokens, grown.parents, strict=True)
        if parent >= 0
    }
    assert below == {(5, 6), (7, 8), (7, 6)}


def test_a_ballot_by_hand():
    said, weights = np.array([5, 6, 5, START], np.int32), np.array([1.0, 2.0, 3.0, 4.0])
    total = 10 + UNHEARD
    assert ballot(said, weights) == [(5, 4 / total), (6, 2 / total)]


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), max_size=30), st.integers(1, 40))
def test_it_is_a_tree_of_distinct_siblings_best_first(answers, nodes):
    store = Store(256)
    for tokens in answers:
        store.add(HERE, tokens)
    grown = foresee(store, HERE, [START, *(answers[0][:3] if answers else ())], nodes)
    assert len(grown.tokens) <= nodes
    assert len(set(zip(grown.parents, grown.tokens, strict=True))) == len(grown.tokens)
    assert all(parent < node for node, parent in enumerate(grown.parents))
    assert list(grown.reach) == sorted(grown.reach, reverse=True)
    for node, parent in enumerate(grown.parents):
        assert 0 < grown.reach[node] <= (1 if parent < 0 else grown.reach[parent])
    for parent in {-1, *grown.parents}:  # siblings share what reaches their parent
        shares = sum(grown.reach[node] for node, above in enumerate(grown.parents) if above == parent)
        assert shares <= (1 if parent < 0 else grown.reach[parent]) + 1e-9
