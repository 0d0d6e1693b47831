"""Drafters that hand over to one another."""

from dataclasses import replace
from functools import partial

import pytest

from crossdraft.api import Engine, Options
from crossdraft.drafters.combine.handover import HandoverDrafter
from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.drafter import NOTHING, Budget, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from tests.drafters.combine.test_fallback import PROMPT, REFUSAL, Refusing, substitute
from tests.drafters.combine.test_union import Scripted, chain
from tests.drafters.test_fork import independent, output, same

PhasedDrafter = partial(HandoverDrafter, phased=True)

NOTE = "The drafter of the prefill gave up (no events); the other one drafted."


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


@pytest.mark.parametrize("hidden", [Refusing(chain(1)), Scripted(REFUSAL)], ids=["begins not", "drafts not"])
@pytest.mark.parametrize(("needs", "first"), [(PROMPT, ()), (Needs(), (3, 4))], ids=["reads the target", "may hide"])
def test_what_the_hidden_one_refuses_the_later_one_drafts_from_the_beginning(hidden, needs, first):
    hidden.ended, hidden.received, later = 0, [], substitute(chain(3, 4), needs)
    phased = PhasedDrafter(hidden, later)
    states = phased.begin([Request("?")])
    (draft,) = phased.propose(states, [Budget(4)])
    assert (draft.tree.tokens, draft.refusal, draft.notes) == (first, None, (NOTE,))
    verified = VerifyOutput((0,) if first else (), (3, 7) if first else (7,))
    phased.commit(states, [verified])
    (draft,) = phased.propose(states, [Budget(4)])
    assert (draft.tree.tokens, draft.refusal) == ((3, 4), None)
    phased.commit(states, [VerifyOutput((0,), (3, 8))])
    assert later.received == [verified, VerifyOutput((0,), (3, 8))]  # of its own trees
    phased.end(states)
    assert (hidden.ended, later.ended, hidden.received) == (int(type(hidden) is Scripted), 1, [])


def test_one_that_refuses_learns_nothing_of_the_answer():
    hidden = Scripted(REFUSAL)
    hidden.needs = Needs(learns=True)
    phased = PhasedDrafter(hidden, Scripted(chain(3)))
    states = phased.begin([Request("?")])
    phased.propose(states, [Budget(4)])
    phased.commit(states, [VerifyOutput((), (7,))])
    phased.end(states)
    assert (hidden.ended, hidden.received) == (1, [])


def test_what_the_later_one_refuses_costs_its_own_turn_alone():
    hidden = Scripted(chain(1, 2))
    phased = PhasedDrafter(hidden, Refusing(chain(3)))
    states = phased.begin([Request("?")])
    (draft,) = phased.propose(states, [Budget(4)])
    assert (draft.tree.tokens, draft.refusal) == ((1, 2), None)
    (fork,) = phased.fork(states)
    for state in (*states, fork):
        phased.commit([state], [VerifyOutput((0,), (1, 9))])
        assert phased.propose([state], [Budget(4)])[0] == REFUSAL
    phased.end(states)
    assert hidden.ended == 2  # its turn of either is over


def test_what_both_refuse_is_refused():
    both = Refusing(chain()), substitute(replace(NOTHING, refusal="nor I"), Needs())
    phased = PhasedDrafter(*both)
    (draft,) = phased.propose(phased.begin([Request("?")]), [Budget(4)])
    assert (draft.refusal, draft.notes) == ("nor I", (NOTE,))
    with pytest.raises(CrossdraftError, match="no events"):
        PhasedDrafter(Refusing(chain()), Refusing(chain())).begin([Request("?")])
    phased = PhasedDrafter(Scripted(REFUSAL), Refusing(chain()))
    (draft,) = phased.propose(phased.begin([Request("?")]), [Budget(4)])
    assert (draft.refusal, draft.notes) == ("no events", (NOTE,))


def test_one_of_several_requests_is_refused():
    class Picky(Counting):
        def propose(self, states, budgets):
            made = super().propose(states, budgets)
            return [REFUSAL if state == 1 else draft for state, draft in zip(states, made, strict=True)]

    hidden, later = Picky(), Counting()
    phased = PhasedDrafter(hidden, later)
    drafts = phased.propose(phased.begin([Request("?")] * 3), [Budget(10 + i) for i in range(3)])
    assert [draft.tree.tokens for draft in drafts] == [(0, 10), (1, 11), (2, 12)]
    assert [draft.notes for draft in drafts] == [(), (NOTE,), ()]
    assert (hidden.asked, later.asked, hidden.ended) == ([3], [1], 1)


@pytest.mark.parametrize("hidden", [Refusing(chain()), Scripted(REFUSAL)], ids=["begins not", "drafts not"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "sampled"])
def test_after_a_refusal_the_drafts_are_those_of_the_later_one_alone(hidden, sampling):
    """With what they were drawn from, so that acceptance is as exact."""
    phased, alone = PhasedDrafter(hidden, independent()), independent()
    requests = [Request("kkk", max_new_tokens=64, sampling=sampling)]
    states, own = phased.begin(requests), alone.begin(requests)
    for bonus in (30, 31, 32, 33):
        (found,), (wanted,) = phased.propose(states, [Budget(6)]), alone.propose(own, [Budget(6)])
        assert len(wanted.tree)
        assert same(found, wanted)
        phased.commit(states, [output(found, bonus)])
        alone.commit(own, [output(wanted, bonus)])


def test_a_union_hands_on_what_an_answer_is_to_say():
    union = UnionDrafter([PhasedDrafter(Refusing(chain()), Scripted(chain(3))), Scripted(chain(4))])
    (draft,) = union.propose(union.begin([Request("?")]), [Budget(4)])
    assert (sorted(draft.tree.tokens), draft.notes) == ([3, 4], (NOTE,))


@pytest.mark.parametrize("spec", ["phased:event,eagle2", "phased:event,ngram", "(phased:event,ngram)@process"])
@pytest.mark.parametrize("placement", ["inline", "process"])
def test_without_events_the_later_one_drafts_from_the_first_round_on(clip, spec, placement):
    options = Options(placement=placement, adaptive=False, max_batch=2, device="cpu", dtype="float32")
    seen = Request("What is ahead?", clip.video, clip.events, max_new_tokens=24, namespace=None)
    answers = []
    with Engine.load("reference", spec, options) as engine:
        for _ in range(5):  # a process that is starved may come too late to draft, or to refuse before the prefill ends
            answers = engine.generate([seen, replace(seen, events=None), replace(seen, events=clip.video)])
            if all(answer.stats.drafted for answer in answers):
                break
        alone = engine.alone(seen)
    assert [answer.tokens for answer in answers] == [alone.tokens] * 3
    assert [answer.drafter_error for answer in answers] == [None] * 3
    assert [answer.stats.drafted > 0 for answer in answers] == [True, True, True]
    assert not answers[0].other_notes
    notes = [note for answer in answers[1:] for note in answer.other_notes]
    assert placement == "process" or len(notes) == 2
    for note in notes:
        assert note.startswith("The drafter of the prefill gave up (")
        assert note.endswith("); the other one drafted.")
