import json

import pytest

from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline, covered
from crossdraft.errors import CrossdraftError


def test_overlap_and_totals():
    timeline = Timeline([Span("target", "prefill", 1.0, 3.0), Span("drafter", "read", 0.5, 1.5)])
    assert timeline.total("target") == 2.0
    assert timeline.total("target", "verify") == 0.0
    assert timeline.spans[1].overlap(1.0, 3.0) == 0.5
    assert timeline.spans[1].overlap(2.0, 3.0) == 0.0
    assert timeline.start == 0.5


def test_the_trace_is_chromes_format(tmp_path):
    timeline = Timeline([Span("target", "prefill", 10.0, 10.002, 400)])
    with timeline.span("drafter", "read"):
        pass
    timeline.save_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    spans = [event for event in events if event["ph"] == "X"]
    assert set(names) == {"target", "drafter"}
    prefill = next(span for span in spans if span["name"] == "prefill")
    assert prefill["tid"] == names["target"]
    assert prefill["dur"] == pytest.approx(2000)
    assert prefill["args"] == {"tokens": 400}


def test_a_trace_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(CrossdraftError, match="Cannot write the trace"):
        Timeline().save_chrome(tmp_path / "no" / "trace.json")


def test_stats_count_by_depth():
    stats = Stats()
    stats.count_round(3, 3, 2, 3, hidden=True)
    stats.count_round(1, 1, 1, 2, hidden=False)
    stats.count_round(0, 0, 0, 1, hidden=False)
    assert stats.tau == pytest.approx(1 + 3 / 3)
    assert stats.accepted_per_position == [1.0, 1.0, 0.0]
    assert (stats.hidden_drafted, stats.hidden_accepted) == (3, 2)


def test_what_lies_behind_an_answers_end_counts_neither_as_accepted_nor_for_tau():
    stats = Stats()
    stats.count_round(2, 2, 2, 3, hidden=True)
    stats.count_round(5, 6, 4, 3, hidden=False)  # the third accepted token was the answer's last
    assert (stats.new_tokens, stats.rounds, stats.accepted) == (6, 2, 5)
    assert stats.tau == pytest.approx(6 / 2)
    assert stats.drafted_at == stats.accepted_at == [2, 2, 1]
    assert stats.drafted == 8


def test_overlapping_spans_cover_a_time_once():
    spans = [Span("drafter", "ahead", 1.0, 3.0), Span("drafter", "draft", 2.0, 4.0), Span("drafter", "x", 6.0, 9.0)]
    assert covered(spans, 0.0, 7.0) == pytest.approx(3 + 1)
    assert covered(spans, 2.5, 3.5) == pytest.approx(1)
    assert covered([], 0.0, 1.0) == 0


def test_overhead_is_what_neither_model_took():
    stats = Stats()
    for stage, seconds in (("rounds", 10.0), ("verify", 7.0), ("draft", 2.5)):
        stats.add_time(stage, seconds)
    assert stats.overhead_share == pytest.approx(0.05)
    assert Stats().overhead_share == 0
    assert Stats().hidden_share is None
    assert json.dumps(stats.to_json())
