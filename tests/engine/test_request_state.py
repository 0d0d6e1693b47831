"""What is counted of an answer, by hand: late drafts, and what the target waited for."""

import pytest

from crossdraft.engine.request import Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.timeline import Span


def living(*spans, ttft=9.0):
    """A request whose target prepared from 1 to 2, encoded to 3 and prefilled to 5."""
    request = Request("x")
    live = RequestState(Job(0, request), rule_for(None, request.sampling))
    live.started, live.tokens, live.stats.ttft_s = 1.0, [1], ttft
    reading = (("prepare", 1.0, 2.0), ("encode", 2.0, 3.0), ("prefill", 3.0, 5.0))
    live.timeline.spans += [Span("target", *each) for each in reading]
    live.timeline.spans += [Span("drafter", *each) for each in spans]
    return live


def counted(live, *late):
    live.count_reading(5.0)
    live.timeline.spans += [Span("drafter", *each) for each in late]
    live.close()
    return live.stats


def test_a_draft_in_time_is_hidden_as_far_as_the_target_was_reading():
    stats = counted(living(("read", 1.5, 2.5), ("hidden draft", 2.5, 6.0)))
    assert stats.hidden_drafting_s == pytest.approx(4.5)
    assert stats.hidden_inside_s == pytest.approx(3.5)
    assert stats.first_provisional_s == pytest.approx(1.5)


def test_a_late_draft_counts_though_it_is_told_only_with_a_later_reply():
    late = ("read", 1.5, 6.0), ("hidden draft", 6.0, 7.0), ("draft", 8.0, 9.0)
    stats = counted(living(), *late)
    assert stats.hidden_drafting_s == pytest.approx(5.5)
    assert stats.hidden_share == pytest.approx(3.5 / 5.5)


def test_a_drafter_that_reads_after_the_prefill_by_order_hid_nothing():
    stats = counted(living(), ("read", 6.0, 7.0), ("resync", 7.0, 8.0))
    assert stats.hidden_share is None
    assert stats.first_provisional_s is None


def test_what_comes_behind_the_first_final_token_is_not_provisional():
    assert counted(living(ttft=5.0), ("read", 1.5, 7.0), ("hidden draft", 7, 8)).first_provisional_s is None


def test_waiting_is_drafting_only_while_the_drafter_computes():
    live = living(("hidden draft", 3.0, 5.25), ("draft", 10.25, 10.75), ("ahead", 10.5, 11.0))
    live.first_round = 10.0
    live.waits = [(5.0, 5.5), (10.0, 11.5), (12.0, 12.25)]
    times = counted(live).stages_s
    assert times["hidden draft"] == pytest.approx(0.25)
    assert times["hidden communication"] == pytest.approx(0.25)
    assert times["draft"] == pytest.approx(0.75)
    assert times["communication"] == pytest.approx(0.75 + 0.25)
