"""Online training: which answers are kept and which of them evaluate, and what a time budget spends."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft_lab.drafters.online.training import FEWEST, SAVED, ReplayBuffer, Sample, TimeBudget
from crossdraft_lab.objective import pad_batch

LAYER, WIDTH = 3, 2


def sample(first: int, length: int = 6) -> Sample:
    tokens = tuple(range(first, first + length))
    return Sample(tokens, 2, {LAYER: torch.tensor(tokens[:-1]).double()[:, None].expand(-1, WIDTH).clone()})


def firsts(answers):
    return [answer.tokens[0] for answer in answers]


def test_each_fourth_answer_is_held_out_and_the_oldest_go():
    buffer = ReplayBuffer(FEWEST, 1 << 20)
    for first in range(10):
        buffer.add(sample(first))
    assert firsts(buffer.split(held_out=True)) == [5, 9]  # 1 has gone
    assert firsts(buffer.split(held_out=False)) == [2, 3, 4, 6, 7, 8]


def test_the_same_text_is_never_in_both_splits():
    buffer = ReplayBuffer(FEWEST, 1 << 20)
    for first in (0, 1, 2, 1, 1, 3, 1):
        buffer.add(sample(first))
    assert firsts(buffer.split(held_out=True)) == [1]
    assert firsts(buffer.split(held_out=False)) == [0, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(3, 40)), max_size=60), st.integers(100, 2000))
def test_memory_stays_within_bounds(answers, room):
    buffer = ReplayBuffer(FEWEST, room)
    for first, length in answers:
        buffer.add(sample(first, length))
        assert len(buffer) <= FEWEST
        assert buffer.bytes <= room
        assert buffer.bytes == sum(
            8 * WIDTH * (len(t.tokens) - 1) for s in (0, 1) for t in buffer.split(held_out=bool(s))
        )


def test_an_answer_larger_than_the_room_costs_no_other():
    buffer = ReplayBuffer(FEWEST, 200)
    buffer.add(sample(0))
    buffer.add(sample(1, 100))
    assert firsts(buffer.split(held_out=False)) == [0]


def test_answers_are_padded_to_one_batch():
    answers = (sample(5, 4), sample(7, 6))
    hidden = {LAYER: [answer.hidden[LAYER] for answer in answers]}
    batch = pad_batch([torch.tensor(answer.tokens) for answer in answers], [2, 2], hidden).to("cpu", torch.float32)
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 0, 0], [7, 8, 9, 10, 11, 12]]
    assert batch.hidden[LAYER][..., 0].tolist() == [[5, 6, 7, 0, 0, 0], [7, 8, 9, 10, 11, 0]]
    assert batch.hidden[LAYER].dtype is torch.float32
    assert (batch.starts.tolist(), batch.lengths.tolist()) == ([2, 2], [4, 6])


def test_a_buffer_too_small_to_hold_some_out_is_refused():
    with pytest.raises(CrossdraftError, match="8 answers or more"):
        ReplayBuffer(7, 1)


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
        budget.refill()
        while budget.allows("piece"):
            with budget.spend("piece"):
                clock.now += costs[done % len(costs)]
            done += 1
        budget.skip("piece")
        spent.append(budget.spent - before)
    return spent


def test_a_task_runs_when_its_cost_is_saved_up():
    clock = Clock()
    budget = TimeBudget(0.25, clock)  # powers of two, which add up exactly
    found = rounds(budget, clock, [1.0], SAVED + 12)
    assert found[: SAVED - 1] == [0.0] * (SAVED - 1)  # nobody knows yet what a piece costs: as much as can be saved
    assert found[SAVED - 1] == 1.0
    # 4.0 are left, and a round's time is used up by one piece: each round does one until the rest is spent.
    assert found[SAVED : SAVED + 5] == [1.0] * 5
    assert found[SAVED + 5 :] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]


@given(st.lists(st.floats(1e-4, 3.0), min_size=1, max_size=5), st.floats(1e-3, 0.5), st.integers(1, 200))
def test_time_spent_is_bounded_whatever_tasks_cost(costs, seconds, count):
    clock = Clock()
    spent = rounds(TimeBudget(seconds, clock), clock, costs, count)
    piece = max(costs)
    assert all(some <= seconds + piece + 1e-9 for some in spent)
    for end in range(count):
        assert sum(spent[: end + 1]) <= (end + 1) * seconds + piece + 1e-6


def test_a_budget_without_cost_estimates_would_be_noticed(monkeypatch):
    """The planted bug: every piece is taken to cost nothing."""
    monkeypatch.setattr(TimeBudget, "_expected", lambda self, kind: float("-inf"))
    with pytest.raises(AssertionError):
        test_time_spent_is_bounded_whatever_tasks_cost.hypothesis.inner_test([1.0], 0.1, 20)


def test_a_slow_task_runs_again_later():
    clock = Clock()
    budget = TimeBudget(0.25, clock)
    rounds(budget, clock, [20.0], SAVED)  # four times what can be saved
    found = rounds(budget, clock, [0.1], 400)
    assert sum(found[:80]) == 0  # the debt
    assert sum(found) > 20


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_seconds_are_refused(seconds):
    with pytest.raises(CrossdraftError, match="seconds is"):
        TimeBudget(seconds)
