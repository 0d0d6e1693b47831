"""Heads with random weights, measured with a drafter that is often right; then the tables and the picture."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from crossdraft.drawing.svg import to_svg
from crossdraft.errors import CrossdraftError
from crossdraft.heads.registry import HEADS
from crossdraft_lab.bench import heads
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.heads import (
    EXPECTATIONS,
    DraftSetting,
    HeadsBench,
    check_expectations,
    draw,
    figures_of,
    lines,
    run_heads,
    tables,
)
from crossdraft_lab.bench.heads_select import select_heads, short_labels
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.study import terminal_table
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.drafters.evaluate import TAU, AcceptanceStats
from tests.bench.some_heads import random_head

SETTINGS = [("tree", 8, 0.0), ("chain", 3, 0.0), ("tree", 8, 1.0)]


@pytest.fixture(scope="module")
def bench(pair, tmp_path_factory):
    """Two heads and the event drafter, on two pairs."""
    folder = tmp_path_factory.mktemp("heads")
    eagle = random_head(pair.target, folder / "eagle", "eagle")
    medusa = random_head(pair.target, folder / "medusa", "medusa")
    (eagle / "provenance.json").write_text(json.dumps({"figures": {"wall_s": 150}}))
    specs = (f"eagle1:dir={eagle},tree=dynamic", f"medusa:dir={medusa},tree=dynamic", "event")
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    work = Workload(2, "any", max_new_tokens=14)
    return HeadsBench(models, work, select_heads(None, specs)[0], 8, 3, timed=1)


@pytest.fixture(scope="module")
def report(bench):
    ticks = []
    found = run_heads(bench, ticks.append)
    assert len(ticks) == bench.ticks
    return found


def test_everybody_is_measured_at_every_setting_and_says_the_same(report):
    eagle, medusa, event = report["drafters"]
    for row in report["drafters"]:
        assert [(at["shape"], at["nodes"], at["temperature"]) for at in row["accepted"]] == SETTINGS
        assert row["identical"] == {"equal": 4, "total": 4}  # two pairs, as trees in a batch and as chains one by one
        assert list(row["accepted"][0]["by_kind"]) == ["key elements", "layout"]
        assert row["speedup"] is None
    assert event["accepted"][0]["tau"] > max(eagle["accepted"][0]["tau"], 1.5)
    assert len(event["accepted"][0]["accepted_per_position"]) > 3
    for row in (event, eagle):  # a chain has no branches: a tree of 3 is rarely 3 deep
        assert len(row["accepted"][1]["accepted_per_position"]) == 3
    assert eagle["parameters"] > 1000
    assert (eagle["training_minutes"], medusa["training_minutes"]) == (2.5, None)
    assert event["trained_parameters"] == 0 < event["parameters"]
    assert eagle["drafting"]["draft_ms"]["median"] > 0
    assert eagle["drafting"]["mean_nodes"] <= 8
    assert report["target"]["v9_ms"]["median"] > 0
    (claim,) = report["claims"]
    assert claim["claim"] == "EAGLE-1 > Medusa"
    assert claim["better"].startswith("eagle1:dir=")


def test_the_report_has_the_keys_of_the_one_that_is_kept(report):
    kept = json.loads((Path(__file__).parents[2] / "docs/results/bench/heads.json").read_text())
    written = json.loads(json.dumps(report))
    assert written["tau"] == TAU
    assert kept.keys() == written.keys()
    (first, own) = (found["drafters"][0] for found in (kept, written))
    assert first.keys() == own.keys()
    assert first["accepted"][0].keys() == own["accepted"][0].keys()
    assert kept["claims"][0].keys() == written["claims"][0].keys()


def test_the_tables_and_the_picture_say_what_they_count(bench, report):
    labels = short_labels(bench.drafters)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(*map(terminal_table, tables(report, labels)))
    shown = capture.get()
    for part in ("tree of 8, T=0", "chain of 3, T=0", "tree of 8, T=1", "prompt's own pass", "V(9)", "4/4", "layout"):
        assert part in shown
    assert any("EAGLE-1 > Medusa" in line for line in lines(report, labels))
    assert any("fewer than 10 pairs" in line for line in lines(report, labels))
    picture = to_svg(draw(report, labels))
    tau = Interval.from_json(report["drafters"][1]["accepted"][1], "tau")
    assert "medusa:tree=dynamic, chain of 3, T=0" in picture
    assert str(tau) in picture
    assert "v9_ms" in picture


def test_an_answer_that_is_not_the_targets_is_reported(bench, monkeypatch):
    """The planted bug: a token too many."""
    honest = heads.decode_all

    def forged(*arguments):
        answers = honest(*arguments)
        object.__setattr__(answers[0], "tokens", (*answers[0].tokens, 7))
        return answers

    monkeypatch.setattr(heads, "decode_all", forged)
    quick = replace(bench, drafters=select_heads(None, ("memory",))[0], nodes=4, chain=0, temperatures=(0.0,), timed=0)
    found = run_heads(quick)
    (row,) = found["drafters"]
    assert row["identical"] == {"equal": 1, "total": 2}
    assert row["divergences"][0]["position"] == 14
    assert any("top-2 logit gaps" in line for line in lines(found, {"memory": "memory"}))
    assert found["target"] is row["drafting"] is None
    assert "memory" in to_svg(draw(found, {"memory": "memory"}))


def test_sampled_alone_compares_nothing(bench):
    quick = replace(bench, drafters=select_heads(None, ("ngram",))[0], nodes=4, temperatures=(1.0,), timed=0)
    (row,) = run_heads(quick)["drafters"]
    assert [(at["shape"], at["temperature"]) for at in row["accepted"]] == [("tree", 1.0)]  # chains are greedy
    assert row["identical"] is None


@pytest.mark.slow
def test_a_race_has_a_speedup_and_is_compared_too(bench):
    timed = replace(bench, chain=0, temperatures=(0.0,), timed=0, speed_pairs=1)
    ticks = []
    found = run_heads(timed, ticks.append)
    assert len(ticks) == timed.ticks
    for row in found["drafters"]:
        assert row["speedup"]["value"] > 0
        assert row["identical"] == {"equal": 3, "total": 3}


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"nodes": 0}, "at least 1 node"),
        ({"chain": -1}, "0 or more"),
        ({"timed": -1}, "0 or more"),
        ({"speed_pairs": -1}, "0 or more"),
        ({"temperatures": ()}, "Name each temperature once"),
        ({"temperatures": (1.0, 1.0)}, "Name each temperature once"),
        ({"temperatures": (-1.0,)}, "temperature is -1"),
    ],
)
def test_settings_that_make_no_sense(arguments, setting):
    with pytest.raises(CrossdraftError, match=setting):
        HeadsBench(Models(), Workload(2), {}, **arguments)


def test_parts_begin_with_the_coldest_tree():
    assert HeadsBench(Models(), Workload(2), {}, 60, 5, (1.0, 0.0)).draft_settings == (
        DraftSetting("tree", 60, 0.0), DraftSetting("chain", 5, 0.0), DraftSetting("tree", 60, 1.0),
    )  # fmt: skip
    assert HeadsBench(Models(), Workload(2), {}, 60, 0, (0.0,)).draft_settings == (DraftSetting("tree", 60, 0.0),)


def test_figures_by_hand():
    # 6/2 and 3/3 tokens a pass: 9/5 in all, not the mean of 3 and 1.
    found = figures_of([AcceptanceStats(2, 6, (2, 2), (2, 2)), AcceptanceStats(3, 3, (2,), (0,))], ["layout", "count"])
    assert found["tau"] == 9 / 5
    assert {kind: tau["tau"] for kind, tau in found["by_kind"].items()} == {"layout": 3, "count": 1}
    assert found["accepted_per_position"] == [0.5, 1.0]
    assert found["depth"] == (2 + 2 + 2) / 5
    assert found["ci95"] == [1, 3]  # either pair may be drawn twice


def test_answers_without_a_pass_do_not_become_nothing():
    found = figures_of(
        [AcceptanceStats(0, 0), AcceptanceStats(0, 0), AcceptanceStats(1, 4)], ["count", "count", "layout"]
    )
    assert {kind: tau["tau"] for kind, tau in found["by_kind"].items()} == {"count": 1, "layout": 4}
    assert (found["tau"], found["ci95"][0]) == (4, 1)


def test_the_order_of_the_papers():
    found = {
        "eagle3": [AcceptanceStats(2, 8), AcceptanceStats(2, 8)],
        "eagle2": [AcceptanceStats(2, 8), AcceptanceStats(2, 8)],
        "eagle1": [AcceptanceStats(2, 9), AcceptanceStats(2, 9)],
        "medusa": [AcceptanceStats(3, 9), AcceptanceStats(3, 9)],
        "hydra": [AcceptanceStats(3, 9), AcceptanceStats(3, 9)],
    }
    expectations = {finding["claim"]: finding for finding in check_expectations(found, {})}
    assert {text: finding["holds"] for text, finding in expectations.items()} == {
        "EAGLE-3 ≥ EAGLE-2": True,  # as good is good enough
        "EAGLE-2 ≥ EAGLE-1": False,
        "EAGLE-1 > Medusa": True,
        "Hydra > Medusa": False,  # as good is not better
    }
    assert expectations["EAGLE-2 ≥ EAGLE-1"]["ratio"]["value"] == pytest.approx(8 / 9, abs=1e-6)
    assert expectations["EAGLE-1 > Medusa"]["ratio"]["value"] == pytest.approx(4.5 / 3)


def test_the_interval_draws_the_same_pairs_for_both():
    """Both are three times as good on the first pair: drawn separately, the ratio would look uncertain."""
    found = {
        "hydra": [AcceptanceStats(1, 6), AcceptanceStats(1, 2)],
        "medusa": [AcceptanceStats(1, 3), AcceptanceStats(1, 1)],
    }
    (finding,) = check_expectations(found, {})
    assert finding["ratio"] == {"value": 2, "ci95": [2, 2], "n": 2}


def test_the_best_of_two_stands_for_both_and_specs_for_their_methods():
    found = {
        "hivis": [AcceptanceStats(1, 2)],
        "vispec:dir=x": [AcceptanceStats(1, 5)],
        "eaglevlm:dir=y": [AcceptanceStats(1, 4)],
    }
    methods = {"hivis": "hivis", "vispec:dir=x": "vispec", "eaglevlm:dir=y": "eaglevlm"}
    (finding,) = check_expectations(found, methods)
    assert (finding["better"], finding["worse"], finding["holds"]) == ("vispec:dir=x", "eaglevlm:dir=y", True)
    assert finding["ratio"] == {"value": 1.25, "ci95": [1.25, 1.25], "n": 1}


def test_expectations_are_about_methods_that_exist():
    assert {name for better, worse in EXPECTATIONS.values() for name in (*better, worse)} <= HEADS.keys()
