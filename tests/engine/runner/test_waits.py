"""What the target waited for drafts is measured as what it was, whatever else is asked of the drafter meanwhile."""

import time
from dataclasses import replace

import pytest

from crossdraft.engine.drafter import NOTHING, Draft
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.tree import DraftTree
from tests.engine.scripted import IgnoresCommits
from tests.engine.zoo import ZOO, as_target

SLOW_S = 0.02
REQUESTS = [Request("x", max_new_tokens=8), Request("xx", max_new_tokens=8)]


class Slow(IgnoresCommits):
    """Takes its time in every round, and refuses the first request there."""

    def begin(self, requests):
        return [request.prompt for request in requests]

    def propose(self, states, budgets):
        time.sleep(SLOW_S)
        refused = replace(NOTHING, refusal="not this one")
        return [refused if state == "x" else Draft(DraftTree.chain([1])) for state in states]


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


def test_a_refusal_does_not_hide_what_the_others_drafts_were_waited_for(target, monkeypatch):
    decoding = DecodeLoop(target, DraftRunner(Slow(), "off"), adaptive=False, max_batch=2)
    observed = []
    monkeypatch.setattr(
        decoding.policy, "saw_draft", lambda draft, kept, nodes, waited_s, rows: observed.append((draft, waited_s))
    )
    found = decoding.generate(REQUESTS)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]
    assert [len(answer.other_notes) for answer in found] == [1, 0]
    assert [answer.drafter_error for answer in found] == ["not this one", None]
    assert sum(draft.refusal is not None for draft, _ in observed) == 1  # which an empty draft has not
    assert len(observed) > 3
    assert all(waited_s >= SLOW_S / 2 for _, waited_s in observed)


def test_a_refused_hidden_draft_is_no_measure_of_hidden_drafts(target):
    decoding = DecodeLoop(target, DraftRunner(Slow(), "before"), adaptive=False)
    decoding.generate(REQUESTS[:1])
    assert decoding.policy.cost.wait_hidden.w == 0
    decoding.generate(REQUESTS[1:])
    assert decoding.policy.cost.wait_hidden.w == 1
