"""Prompt lookup."""

import pytest

from crossdraft.drafters.ngram import NgramDrafter, lookup
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request


@pytest.mark.parametrize(
    ("text", "longest", "most", "found"),
    [
        ([1, 2, 3, 1, 2], 3, 9, (3, 1, 2)),
        ([1, 2, 3, 4, 2, 5, 1, 2], 3, 1, (3,)),  # the longer match, though the shorter is newer
        ([1, 2, 3, 4, 2, 5, 1, 2], 1, 1, (5,)),
        ([1, 2, 3], 3, 9, ()),
        ([7, 7], 3, 9, (7,)),
        ([7], 3, 9, ()),
        ([], 3, 9, ()),
    ],
)
def test_lookup(text, longest, most, found):
    assert lookup(text, longest, most) == found


def test_it_copies_from_the_question_and_from_the_answer():
    drafter = NgramDrafter(lambda text: [ord(letter) for letter in text])
    states = drafter.begin([Request("abcde")])
    drafter.commit(states, [VerifyOutput((), (ord("b"),))])
    (draft,) = drafter.propose(states, [Budget(2)])
    assert "".join(map(chr, draft.tree.tokens)) == "cd"
    assert draft.tree.is_chain
    drafter.commit(states, [VerifyOutput((0,), (ord("c"), ord("x"), ord("b")))])
    seen = []
    drafter.propose(states, [Budget(9, on_token=seen.append)])
    assert "".join(map(chr, seen)) == "cxb"
