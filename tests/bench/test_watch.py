"""`bench watch`: the stream that is made, the figures, and a short run on the tiny pair."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events
from crossdraft.streams import WatchSummary, Windowing
from crossdraft.video import probe
from crossdraft_lab import scenes
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.watch import (
    StreamBench,
    StreamRun,
    rate_over,
    results_table,
    rows,
    run_watch,
    stream_files,
    to_json,
)


def run(due: int, whole: list[float], tokens: dict[int, tuple[int, ...]]) -> StreamRun:
    first = [one / 2 for one in whole]
    dropped = due - len(whole)
    return StreamRun(WatchSummary(due, len(whole), dropped, 2.0, 0, first, whole, 12, 4), tokens)


def test_figures_worked_by_hand():
    runs = {
        "glance": [run(4, [0.1, 0.1, 0.2], {0: (1,), 1: (2,), 3: (4,)}), run(2, [0.2], {0: (9,)})],
        "target": [run(4, [0.3, 0.5], {0: (1,), 1: (3,)}), run(2, [0.4, 0.4], {0: (9,), 1: (8,)})],
    }
    ours, alone = rows(runs)
    assert (ours.due, ours.answered, ours.dropped, ours.rate.value) == (6, 4, 2, 1.0)
    assert (ours.rate.low, ours.rate.high, ours.rate.n) == (0.5, 1.5, 2), "drawn over runs, of 3 and 1 windows in 2 s"
    assert rate_over(runs, "glance", "target").value == 1.0
    assert (ours.identical, ours.compared) == (2, 3)  # window 3 is one that the target dropped
    assert ours.whole_ms == {"p50": 150.0, "p99": 200.0}
    assert ours.first_ms == {"p50": 75.0, "p99": 100.0}
    assert ours.tau.value == 3.0
    assert (alone.identical, alone.compared, alone.dropped) == (4, 4, 2)


def test_the_stream_is_a_scene_each_second_on_one_clock(tmp_path):
    video, events = stream_files(2, tmp_path)
    assert probe(video).seconds == pytest.approx(2.0)
    first, second = (scenes.simulate_events(scenes.make_scene(seed)) for seed in scenes.split_seeds("test")[:2])
    found = read_events(events)
    assert found.slice(0, 1_000_000).t.tolist() == first.slice(0, 1_000_000).t.tolist()
    assert (found.slice(1_000_000, 2_000_000).t - 1_000_000).tolist() == second.slice(0, 1_000_000).t.tolist()


def test_a_short_run_has_every_window_of_every_method(pair):
    models = Models(str(pair.target), str(pair.event), device="cpu", dtype="float32")
    plan = StreamBench(
        models, Windowing(0.5, 0.5), "union:memory,ngram", ("What is ahead?",), seconds=2, max_new_tokens=4, speed=2.0
    )
    done = []
    found = rows(run_watch(plan, done.append))
    assert len(done) == plan.runs == 4
    assert [row.name for row in found] == ["union:memory,ngram", "target"]
    for row in found:
        assert row.due == 4 == row.answered + row.dropped
        assert row.identical == row.compared > 0
    assert "union:memory,ngram" in to_json(plan, found, {})["cores"]
    assert results_table(plan, found).row_count == 2


def test_a_stream_without_a_window_is_refused():
    with pytest.raises(CrossdraftError, match="has no window of 3 s"):
        StreamBench(Models(), Windowing(0.5, 3.0), seconds=2)
