"""Recycled tokens: likely after the same tokens earlier in the answer, or passed over in the last place."""

import pytest

from crossdraft.drafters import recycled
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.drafters.recycled import AFTER_ONE, AFTER_TWO, FREQUENT, PASSED_OVER, RecycledTokens
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter


def test_what_was_likely_after_the_same_tokens_comes_by_its_rank():
    known = RecycledTokens()
    known.learn(VerifyOutput((), (7,), successors={(): [7, 8]}))
    known.learn(VerifyOutput((), (5,), successors={(): [5, 6], (9,): [3]}))  # 9 was drafted, and rejected
    known.learn(VerifyOutput((), (7,), successors={(): [7]}))
    assert known.next_tokens([9]) == {3: AFTER_TWO[0]}  # after 7, 9
    assert known.next_tokens([4, 9]) == {3: AFTER_ONE[0]}
    assert known.next_tokens([4, 4]) == {}
    assert known.next_tokens([]) == pytest.approx(
        {5: AFTER_ONE[0], 6: AFTER_ONE[1]}
    )  # after 7; 7 itself did not repeat


def test_what_was_passed_over_and_what_is_frequent_share_the_rest():
    known = RecycledTokens()
    known.learn(VerifyOutput((), (1, 1, 1, 7), successors={(): [4], (1, 1, 1): [2, 7, 6], (1,): [5]}))
    known.learn(VerifyOutput((), (3, 7), successors={(3,): [7, 2, 9], (): [2]}))
    rest = 1 - AFTER_ONE[0]  # after 7 came 2 first
    assert known.next_tokens([]) == pytest.approx(
        {
            2: AFTER_ONE[0] + rest * PASSED_OVER[0],
            9: rest * PASSED_OVER[1],
            1: rest * FREQUENT[0],
            3: rest * FREQUENT[1],
        }
    )
    assert known.next_tokens([7]) == {2: AFTER_ONE[0]}


def test_of_a_long_answer_the_newest_is_kept(monkeypatch):
    monkeypatch.setattr(recycled, "KEPT", 4)
    known = RecycledTokens()
    for token in range(9):
        known.learn(VerifyOutput((), (token,), successors={(): [token, 50 + token]}))
    assert list(known.after) == [(6,), (5, 6), (7,), (6, 7)]
    for end in ((5, 6), (7, 8)):  # the first are renewed, so those after 7 go
        known.end = end
        known.learn(VerifyOutput((), (1,), successors={(): [1]}))
    assert list(known.after) == [(6,), (5, 6), (8,), (7, 8)]


def test_the_memory_drafts_them_where_no_earlier_text_helps():
    drafter = MemoryDrafter()
    states = drafter.begin([Request("?")])
    drafter.commit(states, [VerifyOutput((), (1, 2), successors={(1,): [2, 8, 9], (): [1, 4]})])
    (draft,) = drafter.propose(states, [Budget(9)])
    assert draft.tree.tokens[:2] == (8, 9)
    assert draft.tree.parents[:2] == (-1, -1)
    assert draft.path_probs[:2] == pytest.approx(PASSED_OVER[:2])
    (fork,) = drafter.fork(states)
    drafter.commit([fork], [VerifyOutput((), (8,), successors={(): [8, 5]})])
    assert drafter.propose(states, [Budget(9)]) == [draft]


def test_in_a_process_it_drafts_the_same():
    found = []
    for drafter in (MemoryDrafter(), ProcessDrafter(MemoryDrafter)):
        states = drafter.begin([Request("?")])
        drafter.commit(states, [VerifyOutput((), (1, 2), successors={(1,): [2, 8, 9], (): [1, 4]})])
        found += drafter.propose(states, [Budget(9)])
        drafter.end(states)
        if isinstance(drafter, ProcessDrafter):
            drafter.close()
    assert len(found[0].tree)
    assert found[0].tree == found[1].tree
    assert found[0].path_probs == found[1].path_probs
