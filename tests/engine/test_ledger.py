"""What is counted of an answer, by hand: late drafts, and what the target waited for."""

from types import SimpleNamespace

import pytest

from crossdraft.engine import ledger, timeline
from crossdraft.engine.ledger import Ledger
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span


@pytest.fixture
def begun(monkeypatch):
    """Makes the ledger of a request whose target prepared from 1 to 2, encoded to 3 and prefilled to 5."""

    def make(*spans, ttft=9.0):
        clock = SimpleNamespace(now=1.0)
        for module in (ledger, timeline):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
        times = Ledger(Stats(ttft_s=ttft))
        for stage, end in (("prepare", 2.0), ("encode", 3.0)):
            with times.stage(stage):
                clock.now = end
        clock.now = 5.0
        times.read_chunk(3.0, 5.0, 7)
        times.timeline.spans += [Span("drafter", *each) for each in spans]
        return times

    return make


def counted(times, *late):
    times.rides_along(5.0, 5.0, 9, 0.0)
    times.prefilled()
    times.timeline.spans += [Span("drafter", *each) for each in late]
    times.close()
    return times.stats


def test_a_draft_in_time_is_hidden_as_far_as_the_target_was_reading(begun):
    stats = counted(begun(("read", 1.5, 2.5), ("hidden draft", 2.5, 6.0, 3)))
    assert stats.hidden_drafting_s == pytest.approx(4.5)
    assert stats.hidden_inside_s == pytest.approx(3.5)
    assert stats.first_provisional_s == pytest.approx(1.5)


def test_a_late_draft_counts_though_it_comes_only_with_a_later_reply(begun):
    late = ("read", 1.5, 6.0), ("hidden draft", 6.0, 7.0, 3), ("draft", 8.0, 9.0)
    stats = counted(begun(), *late)
    assert stats.hidden_drafting_s == pytest.approx(5.5)
    assert stats.hidden_share == pytest.approx(3.5 / 5.5)


READ_LATE = ("read", 6.0, 7.0), ("resync", 7.0, 8.0)  # by order, after the prefill
NO_TOKENS = ("read", 1.5, 2.5), ("hidden draft", 2.5, 2.5, 0)


@pytest.mark.parametrize("spans", [READ_LATE, NO_TOKENS, NO_TOKENS[:1]], ids=["read late", "no tokens", "refused"])
def test_without_a_token_of_a_hidden_draft_nothing_was_hidden(begun, spans):
    stats = counted(begun(), *spans)
    assert stats.hidden_share is None
    assert stats.first_provisional_s is None


def test_what_comes_behind_the_first_final_token_is_not_provisional(begun):
    assert counted(begun(ttft=5.0), ("read", 1.5, 7.0), ("hidden draft", 7, 8, 3)).first_provisional_s is None


def test_waiting_is_drafting_only_while_the_drafter_computes(begun):
    answer = begun(("hidden draft", 3.0, 5.25), ("draft", 10.25, 10.75))
    answer.first_round = 10.0
    answer.waited(5.0, 5.5, ())
    answer.waited(10.0, 11.5, [Span("drafter", "parallel draft", 10.5, 11.0), Span("drafter", "resync", 0.5, 10.9)])
    answer.waited(12.0, 12.25, ())
    times = counted(answer).stages_s
    assert times["hidden draft"] == pytest.approx(0.25)
    assert times["hidden communication"] == pytest.approx(0.25)
    assert times["draft"] == pytest.approx(0.75)  # the last commit of the request before is not counted
    assert times["communication"] == pytest.approx(0.75 + 0.25)
    assert (times["prepare"], times["encode"], times["prefill"]) == pytest.approx((1.0, 1.0, 2.0))
