"""The formulas, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.estimates import expected_accepted
from crossdraft_lab.bench.formulas import hidden_time, hiding_bound, steady_speedup


@given(st.floats(0, 0.99), st.integers(0, 20))
def test_the_closed_form_is_the_sum(alpha, gamma):
    emitted = steady_speedup(alpha, gamma, 0.0, 1.0)
    assert emitted == pytest.approx(1 + expected_accepted([alpha] * gamma))


def test_steady_speedup_by_hand():
    # Two drafts at α = 0.5 emit 1.75 tokens; they cost 2·0.25 and a pass of 1.25.
    assert steady_speedup(0.5, 2, 0.25, 1.25) == pytest.approx(1.75 / 1.75)
    assert steady_speedup(1.0, 3, 0.0, 1.0) == 4


def test_hidden_time_of_the_published_pair():
    # P_T 326, 22 tokens hidden, verify 68.9, 9 accepted, 50 tokens at 15.2 ms: slower than it looks.
    assert hidden_time(326, 83 + 220, 68.9, 9, 50, 15.2) == pytest.approx(326 + 68.9 + 39 * 15.2)
    assert hiding_bound(326, 326 + 49 * 15.2) == pytest.approx(3.285, abs=1e-3)
