"""Every contestant stands in every place, and behind every other one, equally often."""

from collections import Counter
from itertools import islice, pairwise

import pytest

from crossdraft.bench.order import orders, williams


def test_small_designs_by_hand():
    assert williams(1) == [[0], [0]]
    assert williams(2) == [[0, 1], [1, 0]]
    assert williams(3) == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]]


@pytest.mark.parametrize("count", range(2, 9))
def test_places_and_predecessors_are_balanced(count):
    rows = williams(count)
    times = 1 if count % 2 == 0 else 2
    assert all(sorted(row) == list(range(count)) for row in rows)
    places = Counter((place, one) for row in rows for place, one in enumerate(row))
    followers = Counter(pair for row in rows for pair in pairwise(row))
    assert set(places.values()) == set(followers.values()) == {times}
    assert len(followers) == count * (count - 1)


def test_blocks_stay_balanced_though_their_rows_are_shuffled():
    turns = list(islice(orders("abc"), 12))
    assert turns != [["abc"[i] for i in row] for row in williams(3) * 2]
    assert turns == list(islice(orders("abc"), 12))
    followers = Counter(pair for order in turns for pair in pairwise(order))
    assert set(followers.values()) == {4}
    assert len(followers) == 6
