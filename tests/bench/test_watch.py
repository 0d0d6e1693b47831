"""`bench watch`: the stream that is made, the figures, and a short run on the tiny pair."""

import json
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from crossdraft.cli.cores import Cores
from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events
from crossdraft.streams import WatchSummary, Windowing
from crossdraft.video import probe
from crossdraft_lab import scenes
from crossdraft_lab.bench import watch
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.experiments.streaming import (
    RATE_FIGURES,
    highest,
    rate_rows,
    rate_sentence,
    rate_table,
    unequal,
)
from crossdraft_lab.bench.study import rows_json
from crossdraft_lab.bench.watch import (
    RateSearch,
    StreamBench,
    StreamRun,
    rate_over,
    results_table,
    rows,
    run_rates,
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
    assert (ours["due"], ours["answered"], ours["dropped"], ours["rate"].value) == (6, 4, 2, 1.0)
    assert (ours["rate"].low, ours["rate"].high, ours["rate"].n) == (0.5, 1.5, 2), (
        "drawn over runs, of 3 and 1 windows in 2 s"
    )
    assert rate_over(runs, "glance", "target").value == 1.0
    assert ours["identical"] == (2, 3)  # window 3 is one that the target dropped
    assert ours["whole_ms"] == {"p50": 150.0, "p99": 200.0}
    assert ours["first_ms"] == {"p50": 75.0, "p99": 100.0}
    assert ours["tau"].value == 3.0
    assert (alone["identical"], alone["dropped"]) == ((4, 4), 2)


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
    assert [row["name"] for row in found] == ["union:memory,ngram", "target"]
    for row in found:
        assert row["due"] == 4 == row["answered"] + row["dropped"]
        same, compared = row["identical"]
        assert same == compared > 0
    written = to_json(plan, found, {})
    kept = json.loads((Path(__file__).parents[2] / "docs/results/watch.json").read_text())
    assert "union:memory,ngram" in written["cores"]
    assert written["methods"][0].keys() == kept["methods"][0].keys()
    assert written["methods"][0]["identical"] == f"{found[0]['identical'][0]}/{found[0]['identical'][1]}"
    assert len(results_table(plan, found).rows) == 2


def test_a_stream_without_a_window_is_refused():
    with pytest.raises(CrossdraftError, match="has no window of 3 s"):
        StreamBench(Models(), Windowing(0.5, 3.0), seconds=2)


RATES = (2.0, 4.0, 6.0, 8.0, 10.0)


def rated(dropped: int) -> StreamRun:
    return StreamRun(WatchSummary(10, 10 - dropped, dropped), {})


@pytest.mark.parametrize("sustained", [0.0, 2.0, 4.5, 8.0, 9.9, 10.0, 99.0])
def test_the_search_ends_at_the_highest_rate_that_holds(sustained):
    search = RateSearch(RATES)
    while (rate := search.next) is not None:
        search.note(rated(dropped=int(rate > sustained)))
    assert highest(search.tries) == max((rate for rate in RATES if rate <= sustained), default=0.0)
    assert len({rate for rate, _ in search.tries}) <= 3  # of six outcomes
    for rate in RATES:
        assert [not run.summary.dropped for at, run in search.tries if at == rate] in ([], [True], [False, False])


def test_a_window_that_something_else_costs_is_forgiven_once():
    search = RateSearch(RATES)
    for dropped in (1, 0, 1, 1, 0):
        search.note(rated(dropped))
    assert [rate for rate, _ in search.tries] == [6.0, 6.0, 10.0, 10.0, 8.0]
    assert search.next is None
    assert highest(search.tries) == 8.0


@pytest.mark.parametrize("rates", [(), (4, 2), (2, 2), (0, 2), (-1.0, 2), (float("nan"), 2)])
def test_rates_that_do_not_rise_are_refused(rates):
    with pytest.raises(CrossdraftError, match="Rates must be above 0 and rise"):
        RateSearch(rates)


class Planted:
    """Methods that keep up with so much; notes what is run."""

    def __init__(self, sustained):
        self.methods, self.ran = sustained, []

    def run(self, name, question, namespace, speed):
        self.ran.append((name, question, namespace))
        return rated(dropped=int(speed / 0.5 > self.methods[name] + 1e-9))


def test_methods_take_turns_and_nothing_learned_helps_the_next_try(monkeypatch):
    planted = Planted({"glance": 8.0, "target": 2.0, "target-all": 5.0})

    @contextmanager
    def prepared(plan, tick):
        yield planted

    monkeypatch.setattr(watch, "prepared", prepared)
    plan = StreamBench(
        Models("a", "b", device="cpu", dtype="float32"), Windowing(0.5, 0.5), questions=("one", "two"),
        cores=Cores((0,), (1,)),
    )  # fmt: skip
    seen = []
    found = run_rates(plan, RATES, seen.append)
    assert {name: highest(tries) for name, tries in found.items()} == {"glance": 8.0, "target": 2.0, "target-all": 4.0}
    assert sorted(seen) == sorted(name for name, _, _ in planted.ran)
    assert len(set(planted.ran)) == len(planted.ran)
    first = [name for name, _, _ in planted.ran]
    assert all(one != other for one, other in pairwise(first[:6])), "interleaved"


def tried(*rates):
    """Questions whose highest rates these are."""
    return [[(10.0, rated(1)), *([(rate, rated(0))] if rate else [])] for rate in rates]


def test_what_is_said_of_the_rates():
    found = rate_rows({"glance": tried(8.0, 6.0), "target": tried(4.0, 4.0), "target-all": tried(6.0, 4.0)}, "glance")
    assert rate_sentence(found, "glance") == (
        "Without dropping one glance keeps up with 7.00 [6.00, 8.00; n=2] windows a second, target-all with 5.00 "
        "[4.00, 6.00; n=2]: 1.40 [1.33, 1.50; n=2] times the rate."
    )
    rows = rate_table(found, RATES, 5).rows
    assert rows[1] == ("target", "4.00 [4.00, 4.00; n=2]", "4, 4", "0.80 [0.67, 1.00; n=2]", "0")
    rate = rows_json(RATE_FIGURES, found[0])["rate_without_drops"]
    assert rate == {"value": 7.0, "ci95": [6.0, 8.0], "n": 2, "each": [8.0, 6.0]}


def test_where_the_target_alone_keeps_up_with_none_there_is_no_ratio():
    found = rate_rows({"glance": tried(2.0), "target": tried(0)}, "glance")
    assert rate_sentence(found, "glance").endswith("target with 0.00 [no interval; n=1].")
    assert rate_table(found, RATES, 5).rows[0][3] == "–"
    assert rows_json(RATE_FIGURES, found[0])["rate_without_drops_over_alone"] is None


def test_an_answer_is_held_against_the_targets_at_whatever_rate():
    def tries(*tokens):
        return [(2.0 + at, StreamRun(WatchSummary(2, 2, 0), each)) for at, each in enumerate(tokens)]

    alone = [tries({0: (1,), 1: (2,)}, {2: (3,)})]
    assert unequal({"glance": [tries({0: (1,)}, {2: (3,), 9: (7,)})], "target": alone}) == []
    assert unequal({"glance": [tries({0: (1,)}, {2: (4,)})], "target": alone}) == ["glance"]
