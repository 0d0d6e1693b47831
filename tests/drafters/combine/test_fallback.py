"""Who stands in for a drafter that refuses a request, early or late."""

from dataclasses import replace
from functools import partial

import pytest

from crossdraft.api import Engine, Options
from crossdraft.drafters.combine.handover import HandoverDrafter
from crossdraft.engine.drafter import NOTHING, Budget, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from tests.drafters.combine.test_union import Scripted, chain

FallbackDrafter = partial(HandoverDrafter, phased=False)

REFUSAL = replace(NOTHING, refusal="no events")
PROMPT = Needs(hidden_layers=(1,))  # of one that drafts nothing before the target has read


class Refusing(Scripted):
    """Refuses to begin."""

    def begin(self, requests):
        raise CrossdraftError("no events")


def proposed(drafter, states):
    return [draft.tree.tokens for draft in drafter.propose(states, [Budget(4)] * len(states))]


def substitute(draft, needs=PROMPT):
    other = Scripted(draft)
    other.needs = needs
    return other


def test_who_drafts_lets_the_other_go_before_the_target_has_read():
    first, other = Scripted(chain(1, 2)), substitute(chain(3))
    drafter = FallbackDrafter(first, other)
    states = drafter.begin([Request("?")])
    assert proposed(drafter, states) == [(1, 2)]
    assert (first.ended, other.ended) == (0, 1)
    drafter.commit(states, [VerifyOutput((0,), (1, 9))])
    assert (first.received, other.received) == ([VerifyOutput((0,), (1, 9))], [])
    drafter.end(states)
    assert (first.ended, other.ended) == (1, 1)


@pytest.mark.parametrize("first", [Refusing(chain(1)), Scripted(REFUSAL)], ids=["begins not", "drafts not"])
@pytest.mark.parametrize(("needs", "hidden"), [(PROMPT, ()), (Needs(), (3, 4))], ids=["reads the target", "may hide"])
def test_what_the_first_one_refuses_the_other_one_drafts(first, needs, hidden):
    first.ended, other = 0, substitute(chain(3, 4), needs)
    drafter = FallbackDrafter(first, other)
    states = drafter.begin([Request("?")])
    (draft,) = drafter.propose(states, [Budget(4)])
    assert (draft.tree.tokens, draft.refusal) == (hidden, None)
    drafter.commit(states, [VerifyOutput((), (7,))])
    assert proposed(drafter, states) == [(3, 4)]
    drafter.commit(states, [VerifyOutput((0,), (3, 8))])
    assert [output.path for output in other.received] == [(), (0,)]
    drafter.end(states)
    assert (first.ended, other.ended) == (int(type(first) is Scripted), 1)


def test_a_refusal_may_come_after_the_target_has_begun():
    """From another process: until then both follow the answer, and of the other's tree nothing was accepted."""
    first, other = Scripted(NOTHING), substitute(chain(3))
    drafter = FallbackDrafter(first, other)
    states = drafter.begin([Request("?")])
    assert proposed(drafter, states) == [()]
    drafter.commit(states, [VerifyOutput((), (7,))])
    first.draft = REFUSAL
    assert proposed(drafter, states) == [(3,)]
    drafter.commit(states, [VerifyOutput((0,), (3, 8))])
    assert other.received == [VerifyOutput((), (7,)), VerifyOutput((0,), (3, 8))]


def test_a_refusal_after_the_other_one_was_ended_is_said_each_time():
    first, other = Scripted(chain(1, 2)), substitute(chain(3))
    drafter = FallbackDrafter(first, other)
    states = drafter.begin([Request("?")])
    assert (proposed(drafter, states), other.ended) == ([(1, 2)], 1)
    drafter.commit(states, [VerifyOutput((0,), (1, 9))])
    first.draft = REFUSAL
    assert [drafter.propose(states, [Budget(4)])[0] for _ in range(2)] == [REFUSAL, REFUSAL]
    drafter.end(states)
    assert (first.ended, other.ended) == (1, 1)


def test_what_both_refuse_is_refused():
    drafter = FallbackDrafter(Scripted(REFUSAL), substitute(replace(NOTHING, refusal="nor I"), Needs()))
    (draft,) = drafter.propose(drafter.begin([Request("?")]), [Budget(4)])
    assert draft.refusal == "nor I"
    with pytest.raises(CrossdraftError, match="no events"):
        FallbackDrafter(Refusing(chain()), Refusing(chain())).begin([Request("?")])


def test_who_learns_from_answers_follows_all_of_them():
    other = substitute(chain(3), Needs(learns=True))
    drafter = FallbackDrafter(Scripted(chain(1)), other)
    states = drafter.begin([Request("?")])
    proposed(drafter, states)
    drafter.commit(states, [VerifyOutput((0,), (1, 9))])
    drafter.end(states)
    assert (other.received, other.ended) == ([VerifyOutput((), (1, 9))], 1)


@pytest.mark.parametrize("placement", ["inline", "process"])
@pytest.mark.parametrize("other", ["eagle2", "ngram"])
def test_requests_with_and_without_events_are_drafted_for_side_by_side(clip, placement, other):
    options = Options(placement=placement, adaptive=False, max_batch=2, device="cpu", dtype="float32")
    seen = Request("What is ahead?", clip.video, clip.events, max_new_tokens=24)
    with Engine.load("reference", f"fallback:event,{other}", options) as engine:
        asked = [seen, replace(seen, events=None), replace(seen, events=clip.video)]  # the last one is no recording
        answers = engine.generate(asked)
        alone = engine.alone(seen)
    assert [answer.tokens for answer in answers] == [alone.tokens] * 3
    assert [answer.other_notes for answer in answers] == [()] * 3
    assert [answer.stats.drafted > 0 for answer in answers] == [True, True, True]
