"""Rows that are not what they say: answers that are not the target's own, drafters that were lost, what was noted."""

from dataclasses import replace

import pytest

from crossdraft_lab.bench.experiments.breakdown import BREAKDOWN, BreakdownConfig
from crossdraft_lab.bench.experiments.markdown import outcome_page
from crossdraft_lab.bench.experiments.record import ExperimentOutcome, RowFaults, UnitResult
from crossdraft_lab.bench.experiments.report import html_report
from crossdraft_lab.bench.experiments.streaming import StreamingConfig, summarise
from crossdraft_lab.bench.study import Study, faults_of, pooled
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload
from tests.bench.experiments.planted import TOKENS, block, run

LEAKED = (*TOKENS[:-1], 9)
VARIANTS = (
    Variant("target"),
    Variant("event"),
    Variant("pool", "target", "pool:factor=2"),
    Variant("typical", "event", options={"rule": "typical:eps=0.1"}),
    Variant("hf-lookup"),
)
LOST = "The drafter was lost (its process ended); the target went on alone."


def plan(**work):
    return Study(VARIANTS, Workload(2, **work), block=2)


def test_of_rows_that_differ_those_are_faults_that_must_not_and_are_ours():
    methods = {"target": [[run(1.0)]] * 2} | {one.name: [[run(1.0)], [run(1.0, LEAKED)]] for one in VARIANTS[1:]}
    found = pooled([block("pairs 0", methods)])
    assert faults_of([(plan(), found)]) == RowFaults(unequal=("event",))
    assert not faults_of([(plan(temperature=0.7), found)]), "sampled answers differ"


def test_a_drafter_that_was_lost_is_a_fault_and_what_was_noted_is_kept():
    lost = replace(run(1.0), notes=(LOST, "The clip is damaged."), drafter_error="its process ended")
    damaged = replace(run(1.0), notes=("The clip is damaged.",))
    methods = {one.name: [[damaged], [lost if one.name == "event" else damaged]] for one in VARIANTS}
    faults = faults_of([(plan(), pooled([block("pairs 0", methods)]))])
    assert faults
    assert (faults.unequal, faults.lost) == ((), ("event",))
    assert "event, 2 answers: The clip is damaged." in faults.notes
    assert f"event, 1 answer: {LOST}" in faults.notes
    assert "lost or gave up, and the target went on alone: event." in faults.sentences[0]


def breakdown(**changed):
    rows = {name: [[run(4.0, prepare=1.0)], [run(6.0, prepare=1.0)]] for name in BreakdownConfig().methods}
    return BREAKDOWN.summarise(BREAKDOWN.full, [block("pairs 0", {**rows, **changed}, {"loading": 0.5})])


def test_pages_tell_of_faults_and_notes_under_the_tables():
    lost = replace(run(4.0, LEAKED), notes=(LOST,), drafter_error="its process ended")
    found = breakdown(event=[[lost], [run(6.0)]])
    outcome = ExperimentOutcome(BREAKDOWN, BREAKDOWN.full, found, {}, 1, 2.0)
    assert outcome.to_json()["faults"]["unequal"] == ("event",)
    for page in (outcome_page(outcome), html_report([outcome])):
        assert "and should be: event." in page
        assert page.index("Mean milliseconds") < page.index("event, 1 answer: The drafter was lost")
    assert not breakdown().faults


def test_every_time_by_stage_has_its_interval():
    found = breakdown()
    stages, lanes = found.tables
    assert stages.rows[0][1] == "500.0 [500.0, 500.0; n=2]", "half of preparing is loading"
    assert stages.rows[0][8] == "5000.0 [4000.0, 6000.0; n=2]"
    assert all("; n=2]" in cell for row in (*stages.rows, *lanes.rows) for cell in row[1:])
    assert found.figures["reading_share"] == {"value": 0.2, "ci95": [pytest.approx(1 / 6, abs=1e-5), 0.25], "n": 2}
    assert found.figures["lanes_ms"]["event"]["hidden"]["value"] == 0.0


def stream(name, first, tokens=((0, (1, 2)), (1, (3,))), answered=2, **more):
    counts = {"due": 4, "answered": answered, "dropped": 4 - answered, "tokens": 3, "rounds": 3}
    summary = {**counts, "seconds": 1.0, "first_s": first, "whole_s": first}
    return {name: [{"summary": summary, "tokens": [list(one) for one in tokens], **more}]}


def rated(**more):
    """A unit of the rates; `more` is what the drafter's run has besides."""
    tries = {
        name: [[rate, *stream(name, [0.1], answered=4)[name]]] for name, rate in (("target", 4), ("target-all", 6))
    }
    tries["glance"] = [[8, *stream("glance", [0.1], answered=4, **more)["glance"]]]
    tries["glance"].append([10, *stream("glance", [0.1])["glance"]])
    return UnitResult("rates, question 0", (1,), {"question": "?", "rates": tries})


def test_a_stream_has_intervals_of_its_percentiles_and_faults_of_its_rows():
    leaked = ((0, (1, 9)), (1, (3,)))
    units = [
        block("question 0", {"target": [[run(1.0)]]}, {"question": "?", "runs": {
            **stream("target", [0.1, 0.1]), **stream("target-all", [0.2, 0.2]),
            **stream("glance", [0.1, first], leaked, notes=[LOST], drafter_error="its process ended")}})
        for first in (0.1, 0.3)
    ]  # fmt: skip
    found = summarise(StreamingConfig(), [*units, rated()])
    assert found.faults.unequal == found.faults.lost == ("glance",)
    assert found.faults.notes == (f"glance, 2 answers: {LOST}",)
    (glance,) = (row for row in found.tables[0].rows if row[0] == "glance")
    assert glance[4].startswith("100 [100, 200; n=2] / 294 [100, 300; n=2]")
    assert found.figures["glance"]["last_frame_to_first_token_ms"]["p50"]["n"] == 2


def test_a_stream_has_what_it_drops_and_its_rate_over_the_targets_with_their_intervals():
    units = [
        block("question 0", {"target": [[run(1.0)]]}, {"question": "?", "runs": {
            **stream("target", [0.2], answered=1), **stream("target-all", [0.1], answered=2),
            **stream("glance", [0.1], answered=answered)}})
        for answered in (2, 4)
    ]  # fmt: skip
    found = summarise(StreamingConfig(), [*units, rated()])
    dropped = {row[0]: row[2] for row in found.tables[0].rows}
    assert dropped == {"target": "75.0 % [75.0, 75.0; n=2]", "target-all": "50.0 % [50.0, 50.0; n=2]",
                       "glance": "25.0 % [0.0, 50.0; n=2]"}  # fmt: skip
    assert found.figures["glance"]["windows_dropped_share"] == {"value": 0.25, "ci95": [0.0, 0.5], "n": 2}
    assert found.figures["glance"]["rate_over_alone"] == {"value": 1.5, "ci95": [1.0, 2.0], "n": 2}
    assert found.figures["target"]["rate_over_alone"]["value"] == 0.5, "over the faster way to run it"
    assert "1.50 [1.00, 2.00; n=2] times the rate." in found.found


def test_a_stream_has_the_highest_rates_at_which_nothing_is_dropped():
    unit = block("question 0", {"target": [[run(1.0)]]}, {"question": "?", "runs": {
        name: stream(name, [0.1])[name] for name in ("glance", "target", "target-all")}})  # fmt: skip
    found = summarise(StreamingConfig(), [unit, rated(drafter_error="its process ended")])
    assert found.faults.lost == ("glance",)
    assert (
        "glance keeps up with 8.00 [no interval; n=1] windows a second, target-all with 6.00 [no interval; n=1]: 1.33"
        in (found.found)
    )
    assert "The highest rates are of the first 1 questions, on 4 s;" in found.sure
    assert found.tables[1].title == "The highest rate at which none of 25 windows is dropped"
    shown = [row[1] for row in found.tables[1].rows]
    assert shown == ["8.00 [no interval; n=1]", "4.00 [no interval; n=1]", "6.00 [no interval; n=1]"]
    assert found.figures["target"]["rate_without_drops"]["value"] == 4.0
