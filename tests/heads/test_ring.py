"""Which answers are kept, which of them judge, and how they become a lesson."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.heads.buffer import FEWEST, ReplayBuffer, Sample, batch_of

LAYER, WIDTH = 3, 2


def told(first: int, length: int = 6) -> Sample:
    tokens = tuple(range(first, first + length))
    return Sample(tokens, 2, {LAYER: torch.tensor(tokens[:-1]).double()[:, None].expand(-1, WIDTH).clone()})


def firsts(answers):
    return [answer.tokens[0] for answer in answers]


def test_each_fourth_answer_judges_and_the_oldest_go():
    buffer = ReplayBuffer(FEWEST, 1 << 20)
    for first in range(10):
        buffer.add(told(first))
    assert firsts(buffer.side(held_back=True)) == [5, 9]  # 1 has gone
    assert firsts(buffer.side(held_back=False)) == [2, 3, 4, 6, 7, 8]


def test_the_same_text_is_never_on_both_sides():
    buffer = ReplayBuffer(FEWEST, 1 << 20)
    for first in (0, 1, 2, 1, 1, 3, 1):
        buffer.add(told(first))
    assert firsts(buffer.side(held_back=True)) == [1]
    assert firsts(buffer.side(held_back=False)) == [0, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(3, 40)), max_size=60), st.integers(100, 2000))
def test_memory_stays_within_bounds(answers, room):
    buffer = ReplayBuffer(FEWEST, room)
    for first, length in answers:
        buffer.add(told(first, length))
        assert len(buffer) <= FEWEST
        assert buffer.bytes <= room
        assert buffer.bytes == sum(
            8 * WIDTH * (len(t.tokens) - 1) for s in (0, 1) for t in buffer.side(held_back=bool(s))
        )


def test_an_answer_larger_than_the_room_costs_no_other():
    buffer = ReplayBuffer(FEWEST, 200)
    buffer.add(told(0))
    buffer.add(told(1, 100))
    assert firsts(buffer.side(held_back=False)) == [0]


def test_answers_lie_side_by_side():
    batch = batch_of([told(5, 4), told(7, 6)], torch.device("cpu"), torch.float32)
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 0, 0], [7, 8, 9, 10, 11, 12]]
    assert batch.hidden[LAYER][..., 0].tolist() == [[5, 6, 7, 0, 0, 0], [7, 8, 9, 10, 11, 0]]
    assert batch.hidden[LAYER].dtype is torch.float32
    assert (batch.starts.tolist(), batch.lengths.tolist()) == ([2, 2], [4, 6])


def test_too_few_to_judge_by():
    with pytest.raises(CrossdraftError, match="8 answers or more"):
        ReplayBuffer(7, 1)
