"""The ring of answers and its chains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.memory.datastore import START, Datastore, Scope
from crossdraft.errors import CrossdraftError

HERE, THERE = Scope(clip=1, question=10), Scope(clip=2, question=10)


def test_a_gram_is_found_by_scope_newest_first():
    store = Datastore(256)
    store.add(HERE, [5, 6, 7])  # at 1, 2, 3; START at 0
    store.add(THERE, [6, 7, 8])  # at 5, 6, 7; START at 4
    assert store.ends(HERE, [6, 7], 9) == [[3], [6, 3], [6, 3]]
    assert store.ends(THERE, [7], 9) == [[6], [6, 3], [6, 3]]
    assert store.ends(Scope(clip=3, question=30), [START], 9) == [[], [], [4, 0]]
    assert store.ends(HERE, [6, 7], 1) == [[3], [6], [6]]


def test_around_a_position():
    store = Datastore(256)
    store.add(HERE, [5, 6, 7])
    (row,) = store.around(np.array([2]), 2, 3).tolist()
    assert row == [START, 5, 6, 7, START]  # an end is always there to be read


def test_around_a_position_at_the_seam_of_the_ring():
    store = Datastore(256)
    store.add(HERE, range(200))
    store.add(HERE, range(200, 400))  # its START at 201: token t stands at t + 2
    assert store.around(np.array([254, 257]), 2, 3).tolist() == [[250, 251, 252, 253, 254], [253, 254, 255, 256, 257]]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=40),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_what_is_found_is_what_is_held(answers, first, second):
    """Against a plain search over the newest 256 tokens. A chain may hold more (shared hashes), never less."""
    store, text = Datastore(256), []
    for tokens in answers:
        store.add(HERE, tokens)
        text += [START, *tokens]
    oldest = max(0, len(text) - 255)
    positions = [at for at in range(oldest + 1, len(text)) if text[at - 1 : at + 1] == [first, second]]
    (_, _, anywhere) = store.ends(Scope(0, 0), [first, second], 10**6)
    assert anywhere == sorted(anywhere, reverse=True)
    assert set(positions) <= set(anywhere)
    assert all(at >= oldest for at in anywhere)
    assert len(store) == min(256, len(text))


def test_an_answer_longer_than_the_ring_leaves_its_end():
    store = Datastore(256)
    store.add(HERE, range(1000))
    (_, _, anywhere) = store.ends(HERE, [998, 999], 5)
    assert anywhere[0] == store.written - 1
    assert store.around(np.array(anywhere[:1]), 1, 1).tolist() == [[998, 999]]
    assert len(store) == 255


@pytest.mark.parametrize("capacity", [0, 255, 1 << 30])
def test_absurd_capacities_are_refused(capacity):
    with pytest.raises(CrossdraftError, match=str(capacity)):
        Datastore(capacity)
