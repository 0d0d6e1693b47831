"""Which answers are kept, which of them judge, and how they become a lesson."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.heads.ring import FEWEST, Ring, Told, lesson_of

LAYER, WIDTH = 3, 2


def told(first: int, length: int = 6) -> Told:
    tokens = tuple(range(first, first + length))
    return Told(tokens, 2, {LAYER: torch.tensor(tokens[:-1]).double()[:, None].expand(-1, WIDTH).clone()})


def firsts(answers):
    return [answer.tokens[0] for answer in answers]


def test_each_fourth_answer_judges_and_the_oldest_go():
    ring = Ring(FEWEST, 1 << 20)
    for first in range(10):
        ring.add(told(first))
    assert firsts(ring.side(held_back=True)) == [5, 9]  # 1 has gone
    assert firsts(ring.side(held_back=False)) == [2, 3, 4, 6, 7, 8]


def test_the_same_text_is_never_on_both_sides():
    ring = Ring(FEWEST, 1 << 20)
    for first in (0, 1, 2, 1, 1, 3, 1):
        ring.add(told(first))
    assert firsts(ring.side(held_back=True)) == [1]
    assert firsts(ring.side(held_back=False)) == [0, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(3, 40)), max_size=60), st.integers(100, 2000))
def test_memory_stays_within_bounds(answers, room):
    ring = Ring(FEWEST, room)
    for first, length in answers:
        ring.add(told(first, length))
        assert len(ring) <= FEWEST
        assert ring.bytes <= room
        assert ring.bytes == sum(8 * WIDTH * (len(t.tokens) - 1) for s in (0, 1) for t in ring.side(held_back=bool(s)))


def test_an_answer_larger_than_the_room_costs_no_other():
    ring = Ring(FEWEST, 200)
    ring.add(told(0))
    ring.add(told(1, 100))
    assert firsts(ring.side(held_back=False)) == [0]


def test_answers_lie_side_by_side():
    lesson = lesson_of([told(5, 4), told(7, 6)], torch.device("cpu"), torch.float32)
    assert lesson.tokens.tolist() == [[5, 6, 7, 8, 0, 0], [7, 8, 9, 10, 11, 12]]
    assert lesson.hidden[LAYER][..., 0].tolist() == [[5, 6, 7, 0, 0, 0], [7, 8, 9, 10, 11, 0]]
    assert lesson.hidden[LAYER].dtype is torch.float32
    assert (lesson.starts.tolist(), lesson.lengths.tolist()) == ([2, 2], [4, 6])


def test_too_few_to_judge_by():
    with pytest.raises(CrossdraftError, match="8 answers or more"):
        Ring(7, 1)
