"""Who votes, with what weight, and the tree that comes of it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.memory.datastore import START, Datastore, Scope
from crossdraft.drafters.memory.retrieval import ECHOES, OLD, RECENT, echoes, retrieve, weigh

HERE, THERE, ELSEWHERE = Scope(1, 10), Scope(2, 10), Scope(3, 30)


def tree(store, scope, text, nodes):
    grown = retrieve(store, scope, [START, *text], nodes)
    return list(zip(grown.tokens, grown.parents, strict=True))


def test_nothing_is_foreseen_by_an_empty_memory():
    assert tree(Datastore(256), HERE, [], 8) == []


def test_an_answer_once_given_is_foreseen_whole():
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


def test_weights_by_hand():
    """A place that differs in the last token but one: e^-2.5, times the age's part and the scope's."""
    store = Datastore(256)
    store.add(HERE, [7, 8, 9])
    weights = weigh(store, np.array([3, 3]), np.array([1.0, 0.5]), [4, 8])
    age = 0.5 ** (1 / 10) + OLD
    assert weights.tolist() == pytest.approx([math.exp(-2.5) * age, math.exp(-2.5) * age / 2])


def test_an_answer_that_repeats_itself_is_foreseen_by_itself():
    """Nothing is stored: the answer's own words vote, and what leads up to its end begins again there."""
    assert tree(Datastore(256), HERE, [5, 6, 7, 5, 6], 4) == [(7, -1), (5, 0), (6, 1), (7, 2)]
    assert tree(Datastore(256), HERE, [5, 6, 7], 4) == []


def test_an_answer_is_trusted_more_than_the_newest_one_about_its_clip():
    store = Datastore(256)
    said = list(range(20, 40))
    store.add(HERE, [*said, 3])
    assert tree(store, HERE, [*said, 8, *said], 1) == [(8, -1)]
    (own,) = echoes([START, 2, 2], 1)[1].tolist()  # behind the first 2: [nothing, START, 2]
    assert own == pytest.approx(math.exp(-2.5 - 1.25) * (1 + OLD))


def test_only_the_newest_of_an_answer_is_looked_through():
    text = [START, 7, 8, *range(100, 100 + RECENT), 7]
    assert len(echoes(text, 4)[0]) == 0
    assert echoes([*text[:-5], 7], 4)[0].tolist() == [[8, 100, 101, 102]]
    assert len(echoes([START, *[7] * 100], 4)[0]) == ECHOES


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), max_size=30), st.integers(1, 40))
def test_it_is_a_tree_of_distinct_siblings_best_first(answers, nodes):
    store = Datastore(256)
    for tokens in answers:
        store.add(HERE, tokens)
    grown = retrieve(store, HERE, [START, *(answers[0][:3] if answers else ())], nodes)
    assert len(grown.tokens) <= nodes
    assert len(set(zip(grown.parents, grown.tokens, strict=True))) == len(grown.tokens)
    assert all(parent < node for node, parent in enumerate(grown.parents))
    assert list(grown.path_probs) == sorted(grown.path_probs, reverse=True)
    for node, parent in enumerate(grown.parents):
        assert 0 < grown.path_probs[node] <= (1 if parent < 0 else grown.path_probs[parent])
    for parent in {-1, *grown.parents}:  # siblings share what reaches their parent
        shares = sum(grown.path_probs[node] for node, above in enumerate(grown.parents) if above == parent)
        assert shares <= (1 if parent < 0 else grown.path_probs[parent]) + 1e-9
