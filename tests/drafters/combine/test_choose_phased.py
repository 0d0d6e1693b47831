"""Drafters that hand over to one another."""

import pytest

from crossdraft.drafters.combine.choose import Arm, ChooseDrafter, best_arm, learn
from crossdraft.drafters.combine.phased import PhasedDrafter
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from tests.drafters.combine.test_union import Scripted, chain


class Counting(Scripted):
    """Drafts for each request the number that it was begun as; notes for how many it was asked at once."""

    def __init__(self):
        super().__init__(chain())
        self.begun, self.asked = 0, []

    def begin(self, requests):
        self.begun += len(requests)
        return [*range(self.begun - len(requests), self.begun)]

    def propose(self, states, budgets):
        self.asked.append(len(states))
        return [chain(state, budget.nodes) for state, budget in zip(states, budgets, strict=True)]


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def answer(choose, clock, seconds_of):
    """One answer of ten tokens; returns who drafted it."""
    (state,) = choose.begin([Request("?")])
    choose.propose([state], [Budget(4)])
    clock.now += seconds_of[state.arm]
    choose.commit([state], [VerifyOutput((), tuple(range(10)))])
    choose.end([state])
    return state.arm


def test_the_faster_is_taken_and_the_other_tried_now_and_then():
    clock = Clock()
    choose = ChooseDrafter([Scripted(chain(1)), Scripted(chain(2))], clock)
    taken = [answer(choose, clock, (1.0, 0.5)) for _ in range(60)]
    assert taken[:2] == [0, 1]
    assert taken[20:].count(1) > 32
    assert 0 in taken[20:]


def test_it_notices_when_things_change():
    clock = Clock()
    choose = ChooseDrafter([Scripted(chain(1)), Scripted(chain(2))], clock)
    for _ in range(40):
        answer(choose, clock, (1.0, 0.5))
    taken = [answer(choose, clock, (0.5, 2.0)) for _ in range(60)]
    assert taken[-20:].count(0) > 15


def test_rates_by_hand():
    arms = [Arm(), Arm()]
    assert best_arm(arms) == 0
    learn(arms, 0, 10.0)
    assert best_arm(arms) == 1
    learn(arms, 1, 30.0)
    assert (arms[0].mean, arms[1].mean) == (pytest.approx(10.0), 30.0)
    assert arms[0].answers == pytest.approx(0.98)
    assert best_arm(arms) == 1


def test_one_while_hidden_the_other_afterwards():
    hidden, later = Scripted(chain(1, 2)), Scripted(chain(3))
    phased = PhasedDrafter(hidden, later)
    states = phased.begin([Request("?")])
    assert phased.propose(states, [Budget(4)])[0].tree.tokens == (1, 2)
    phased.commit(states, [VerifyOutput((0,), (1, 9))])
    assert later.received == [VerifyOutput((), (1, 9))]  # nothing of its own tree was judged
    assert phased.propose(states, [Budget(4)])[0].tree.tokens == (3,)
    phased.commit(states, [VerifyOutput((0,), (3, 4))])
    assert later.received[-1].path == (0,)
    phased.end(states)
    assert (hidden.ended, later.ended) == (1, 1)


def test_ended_before_it_answered():
    hidden, later = Scripted(chain(1)), Scripted(chain(2))
    phased = PhasedDrafter(hidden, later)
    phased.end(phased.begin([Request("?")]))
    assert (hidden.ended, later.ended) == (1, 1)


def test_the_hidden_one_keeps_the_whole_answer():
    memory = MemoryDrafter()
    phased = PhasedDrafter(memory, Scripted(chain(9)))
    for _ in range(2):
        (state,) = phased.begin([Request("?")])
        (draft,) = phased.propose([state], [Budget(4)])
        phased.commit([state], [VerifyOutput((), (1, 2))])
        phased.commit([state], [VerifyOutput((), (3,))])
        phased.end([state])
    assert draft.tree.tokens[:3] == (1, 2, 3)


def test_each_arm_is_asked_once_for_all_its_requests():
    arms = [Counting(), Counting()]
    choose = ChooseDrafter(arms)
    states = choose.begin([Request("?")] * 5)
    for state, arm in zip(states, (0, 1, 0, 1, 0), strict=True):
        state.arm = arm
    drafts = choose.propose(states, [Budget(10 + i) for i in range(5)])
    assert [draft.tree.tokens for draft in drafts] == [(state.state, 10 + i) for i, state in enumerate(states)]
    assert [arm.asked for arm in arms] == [[3], [2]]


def test_each_phase_is_asked_once_for_all_its_requests():
    hidden, later = Counting(), Counting()
    phased = PhasedDrafter(hidden, later)
    states = phased.begin([Request("?")] * 5)
    phased.commit([states[1], states[4]], [VerifyOutput((), (7,))] * 2)
    drafts = phased.propose(states, [Budget(10 + i) for i in range(5)])
    assert [draft.tree.tokens for draft in drafts] == [(i, 10 + i) for i in range(5)]
    assert (hidden.asked, later.asked) == ([3], [2])


def test_a_drafter_that_sends_too_few_drafts_costs_those_of_its_requests():
    class Short(Counting):
        def propose(self, states, budgets):
            return super().propose(states, budgets)[1:]

    phased = PhasedDrafter(Counting(), Short())
    states = phased.begin([Request("?")] * 3)
    phased.commit(states[1:], [VerifyOutput((), (7,))] * 2)
    drafts = phased.propose(states, [Budget(4)] * 3)
    assert [draft.fault is None for draft in drafts] == [True, False, False]
