"""The bound on the bytes of media that all requests hold."""

import pytest

from crossdraft.serve.budget import MediaBudget, MediaShare
from crossdraft.serve.errors import ApiError


def test_a_value_of_several_requests_counts_once():
    budget = MediaBudget(100)
    first, second = MediaShare(budget), MediaShare(budget)
    first.hold(60, "clip")
    first.hold(60, "clip")
    second.hold(60, "clip")
    assert budget.held == 60
    first.close()
    assert budget.held == 60
    second.close()
    assert (budget.held, len(budget.holders)) == (0, 0)


def test_what_grows_is_one_value_however_many_pieces_it_comes_in():
    budget = MediaBudget(1000)
    share, other = MediaShare(budget), MediaShare(budget)
    grow = share.growing()
    for _ in range(600):
        grow(1)
    assert (budget.held, len(budget.holders), len(share._sizes)) == (600, 1, 1)
    with pytest.raises(ApiError) as error:
        other.growing()(401)
    assert error.value.status == 503
    with pytest.raises(ApiError) as error:
        grow(401)
    assert error.value.status == 413
    assert budget.held == 600
    share.close()
    other.close()
    assert (budget.held, len(budget.holders)) == (0, 0)
