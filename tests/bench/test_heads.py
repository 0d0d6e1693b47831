"""Heads with random weights, measured with a drafter that is often right; then the tables and the picture."""

import json

import pytest
from rich.console import Console

from crossdraft.drafters.evaluate import TAU
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench import heads
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.heads import DraftSetting, HeadsBench, HeadsSettings, run_heads
from crossdraft_lab.bench.heads_report import draw, lines, plot, tables, to_json
from crossdraft_lab.bench.heads_select import select_heads
from crossdraft_lab.bench.workload import Workload
from tests.bench.some_heads import random_head

TREE, CHAIN, WARM = DraftSetting("tree", 8, 0.0), DraftSetting("chain", 3, 0.0), DraftSetting("tree", 8, 1.0)


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
    return HeadsBench(models, work, select_heads(None, specs), HeadsSettings(8, 3, timed=1))


@pytest.fixture(scope="module")
def report(bench):
    ticks = []
    found = run_heads(bench, ticks.append)
    assert len(ticks) == bench.ticks
    return found


def test_everybody_is_measured_at_every_part_and_says_the_same(report):
    assert report.settings == (TREE, CHAIN, WARM)
    eagle, medusa, event = report.rows
    for row in report.rows:
        assert set(row.accepted) == {TREE, CHAIN, WARM}
        assert (row.equal, row.total) == (4, 4)  # two pairs, as trees in a batch and as chains one by one
        assert list(row.accepted[TREE].by_kind) == ["key elements", "layout"]
    assert event.accepted[TREE].tau.value > max(eagle.accepted[TREE].tau.value, 1.5)
    assert len(event.accepted[CHAIN].per_position) == 3
    assert len(event.accepted[TREE].per_position) > 3
    assert eagle.facts.parameters > 1000
    assert eagle.facts.training_s == 150
    assert medusa.facts.training_s is None
    assert event.facts.trained == 0 < event.facts.parameters


def test_a_heads_chain_has_no_branches(bench, report):
    """Nothing but the node count would tell otherwise: a tree of 3 is rarely 3 deep."""
    eagle = report.rows[0]
    assert len(eagle.accepted[CHAIN].per_position) == 3


def test_claims_about_those_that_are_there(report):
    (finding,) = report.expectations
    assert finding.expectation.text == "EAGLE-1 > Medusa"
    assert finding.better.startswith("eagle1:dir=")


def test_the_report_in_plain_values(report):
    written = json.loads(json.dumps(to_json(report)))
    assert written["tau"] == TAU
    first = written["drafters"][0]
    assert first["identical"] == {"equal": 4, "total": 4}
    assert first["training_minutes"] == 2.5
    assert first["drafting"]["draft_ms"]["median"] > 0
    assert first["drafting"]["mean_nodes"] <= 8
    assert [(a["shape"], a["nodes"], a["temperature"]) for a in first["accepted"]] == [
        ("tree", 8, 0.0), ("chain", 3, 0.0), ("tree", 8, 1.0),
    ]  # fmt: skip
    assert first["speedup"] is None
    assert written["target"]["v9_ms"]["median"] > 0
    assert written["claims"][0]["claim"] == "EAGLE-1 > Medusa"


def test_the_tables_say_what_they_count(report):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(*tables(report))
    shown = capture.get()
    for setting in (
        "tree of 8, T=0",
        "chain of 3, T=0",
        "tree of 8, T=1",
        "prompt's own pass",
        "V(9)",
        "4/4",
        "layout",
    ):
        assert setting in shown
    assert any("EAGLE-1 > Medusa" in line for line in lines(report))
    assert any("fewer than 10 pairs" in line for line in lines(report))


def test_the_picture_shows_the_figures(report, tmp_path):
    taus, drafts = draw(report).axes
    rows = report.rows
    values = [bar.get_width() for bar in taus.patches]
    assert values == [row.accepted[setting].tau.value for setting in (TREE, CHAIN) for row in rows]
    assert [bar.get_width() for bar in drafts.patches] == [row.drafting.draft.median * 1e3 for row in rows]
    assert [label.get_text() for label in taus.get_yticklabels()] == [
        "eagle1:tree=dynamic",
        "medusa:tree=dynamic",
        "event",
    ]
    plot(report, tmp_path / "heads.png")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_an_answer_that_is_not_the_targets_is_reported(bench, report, monkeypatch):
    """The planted bug: a token too many."""
    honest = heads.decode_all

    def forged(*arguments):
        answers = honest(*arguments)
        object.__setattr__(answers[0], "tokens", (*answers[0].tokens, 7))
        return answers

    monkeypatch.setattr(heads, "decode_all", forged)
    quick = HeadsBench(bench.models, bench.work, select_heads(None, ("memory",)), HeadsSettings(4, 0, (0.0,), timed=0))
    found = run_heads(quick)
    (row,) = found.rows
    assert (row.equal, row.total) == (1, 2)
    assert row.divergences[0].position == 14
    assert any("top-2 logit gaps" in line for line in lines(found))
    assert found.times is row.drafting is None
    assert len(draw(found).axes) == 1


def test_sampled_alone_compares_nothing(bench):
    quick = HeadsBench(bench.models, bench.work, select_heads(None, ("ngram",)), HeadsSettings(4, 3, (1.0,), timed=0))
    found = run_heads(quick)
    assert found.settings == (DraftSetting("tree", 4, 1.0),)  # chains are greedy
    assert to_json(found)["drafters"][0]["identical"] is None


@pytest.mark.slow
def test_a_race_has_a_speedup_and_is_compared_too(bench):
    timed = HeadsBench(bench.models, bench.work, bench.selection, HeadsSettings(8, 0, (0.0,), timed=0, speed_pairs=1))
    ticks = []
    found = run_heads(timed, ticks.append)
    assert len(ticks) == timed.ticks
    for row in found.rows:
        assert row.speedup.value > 0
        assert (row.equal, row.total) == (3, 3)


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
        HeadsSettings(**arguments)


def test_parts_begin_with_the_coldest_tree():
    assert HeadsSettings(60, 5, (1.0, 0.0)).draft_settings == (
        DraftSetting("tree", 60, 0.0), DraftSetting("chain", 5, 0.0), DraftSetting("tree", 60, 1.0),
    )  # fmt: skip
    assert HeadsSettings(60, 0, (0.0,)).draft_settings == (DraftSetting("tree", 60, 0.0),)
