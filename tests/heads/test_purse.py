"""Time that may be spent: the accounts under a clock that tests wind by hand."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.heads.budget import SAVED, TimeBudget


@dataclass
class Clock:
    """Stands still unless it is wound."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def rounds(budget, clock, costs, count):
    """So many rounds of pieces with those costs, over and over; what each round spent."""
    spent, done = [], 0
    for _ in range(count):
        before = budget.spent
        budget.earn()
        while budget.affords("piece"):
            with budget.pay("piece"):
                clock.now += costs[done % len(costs)]
            done += 1
        budget.wait("piece")
        spent.append(budget.spent - before)
    return spent


def test_a_piece_is_paid_when_its_cost_is_saved_up():
    clock = Clock()
    budget = TimeBudget(0.25, clock)  # powers of two, which add up exactly
    found = rounds(budget, clock, [1.0], SAVED + 12)
    assert found[: SAVED - 1] == [0.0] * (SAVED - 1)  # nobody knows yet what a piece costs: as much as can be saved
    assert found[SAVED - 1] == 1.0
    # 4.0 are left, and a round's time is used up by one piece: each round does one until the rest is spent.
    assert found[SAVED : SAVED + 5] == [1.0] * 5
    assert found[SAVED + 5 :] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]


@given(st.lists(st.floats(1e-4, 3.0), min_size=1, max_size=5), st.floats(1e-3, 0.5), st.integers(1, 200))
def test_what_is_spent_is_bounded_whatever_pieces_cost(costs, seconds, count):
    clock = Clock()
    spent = rounds(TimeBudget(seconds, clock), clock, costs, count)
    piece = max(costs)
    assert all(some <= seconds + piece + 1e-9 for some in spent)
    for end in range(count):
        assert sum(spent[: end + 1]) <= (end + 1) * seconds + piece + 1e-6


def test_a_purse_that_did_not_remember_costs_would_be_noticed(monkeypatch):
    """The planted bug: every piece is taken to cost nothing."""
    monkeypatch.setattr(TimeBudget, "_expected", lambda self, kind: float("-inf"))
    with pytest.raises(AssertionError):
        test_what_is_spent_is_bounded_whatever_pieces_cost.hypothesis.inner_test([1.0], 0.1, 20)


def test_one_slow_piece_is_not_for_ever():
    clock = Clock()
    budget = TimeBudget(0.25, clock)
    rounds(budget, clock, [20.0], SAVED)  # four times what can be saved
    found = rounds(budget, clock, [0.1], 400)
    assert sum(found[:80]) == 0  # the debt
    assert sum(found) > 20


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_make_no_sense(seconds):
    with pytest.raises(CrossdraftError, match="seconds is"):
        TimeBudget(seconds)
