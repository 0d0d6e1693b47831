"""The n-gram index finds what its definition finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.token_index import TokenIndex
from crossdraft.engine.prompt import GAP, PromptIds, known_ids

FEW = st.lists(st.integers(0, 2), max_size=24)


def defined(text, longest):
    """The longest match, of several the newest: every n-gram is compared at every place."""
    for length in range(min(longest, len(text) - 1), 0, -1):
        sought = text[-length:]
        for place in range(len(text) - 1, length - 1, -1):
            if GAP not in (*sought, text[place]) and text[place - length : place] == sought:
                return length, place
    return 0, 0


@given(st.lists(st.integers(GAP, 2), max_size=24), FEW, st.integers(1, 5), st.integers(0, 9))
def test_a_match_is_what_a_search_finds(prompt, answer, longest, most):
    index = TokenIndex(longest, known_ids(prompt))
    index.read_prompt()
    for count in range(len(answer) + 1):
        text = [*prompt, *answer[:count]]
        length, place = index.longest_match()
        assert (length, place) == defined(text, longest)
        copied = text[place : place + most]
        assert index.following(place, most) == tuple(copied[: copied.index(GAP)] if GAP in copied else copied)
        index.append(answer[count : count + 1])


@given(st.lists(st.integers(GAP, 2), max_size=12), FEW, FEW)
def test_a_prompt_that_becomes_known_later_and_copies(prompt, answer, other):
    awaited = PromptIds()
    index = TokenIndex(3, awaited)
    index.append(answer)
    index.read_prompt()
    assert index.longest_match() == defined(answer, 3)
    copy = index.copy()
    copy.append(other)
    awaited.set_result(tuple(prompt))
    for one, text in ((index, [*prompt, *answer]), (copy, [*prompt, *answer, *other])):
        one.read_prompt()
        assert one.longest_match() == defined(text, 3)
        assert one.tokens(0, len(one)) == tuple(text)
        assert one.copy().longest_match() == defined(text, 3)


@pytest.mark.parametrize(
    ("places", "around"), [([1], [[GAP, 5, 6, 7]]), ([3, 0], [[6, 7, GAP, GAP], [GAP, GAP, 5, 6]])]
)
def test_what_stands_around_a_place(places, around):
    index = TokenIndex(2, known_ids((5, 6, 7)))
    index.read_prompt()
    found = index.prompt.around(np.array(places), 2, 2)
    assert found.tolist() == around
