"""What blocks of runs say, worked by hand; a planted slowdown and a planted leak are found."""

import json

import numpy as np
import pytest

from crossdraft import scenes
from crossdraft.bench.experiments.blocks import BlockPlan, pooled, speed_row
from crossdraft.bench.experiments.variants import Variant
from crossdraft.bench.workload import Workload
from crossdraft.bench.workload import questions as questions_of
from tests.bench.experiments.planted import TOKENS, block, run


def through_json(unit):
    """As it comes back from the file."""
    return type(unit)(unit.key, unit.seeds, json.loads(json.dumps(unit.found)))


def test_ratios_are_of_sums_over_all_blocks():
    first = block("pairs 0", {"target": [[run(4.0)], [run(2.0)]], "event": [[run(1.0)], [run(2.0)]]})
    second = block("pairs 2", {"target": [[run(6.0)]], "event": [[run(1.0)]]})
    found = pooled([through_json(first), through_json(second)])
    assert found.speedup("event").value == pytest.approx(12 / 4)  # a mean of ratios would be 3.67
    assert found.results.tau("event").value == pytest.approx(1.0)
    assert found.mean("event", "total_s").value == pytest.approx(4 / 3)


def test_the_baseline_is_the_faster_of_the_target_alone():
    methods = {"target": [[run(4.0)]], "target-all": [[run(3.0)]], "event": [[run(1.5)]]}
    found = pooled([block("pairs 0", methods)])
    assert found.alone == "target-all"
    assert found.speedup("event").value == pytest.approx(2.0)
    assert found.speedup("target").value == pytest.approx(0.75)


def test_stages_are_means_over_runs():
    one = [[run(4.0, prefill=1.0), run(4.0, prefill=3.0)], [run(4.0, prefill=5.0), run(4.0, prefill=5.0)]]
    found = pooled([block("pairs 0", {"target": one})])
    assert found.stage("target", "prefill").value == pytest.approx(3.5)
    assert found.stage("target", "prefill", "verify").value == pytest.approx(4.0)


def test_a_slowdown_of_three_percent_is_found():
    """The interval of a ratio of paired times excludes 1, though pairs themselves differ by far more."""
    times = np.random.default_rng(0).uniform(0.5, 2.0, 64)
    noise = np.random.default_rng(1).normal(1.0, 0.01, (2, 64))
    own = [[run(float(time))] for time in times * noise[0]]
    slow = [[run(float(time))] for time in times * noise[1] * 1.03]
    found = pooled([block("pairs 0", {"target": own, "slow": slow})])
    assert found.speedup("slow").high < 1.0
    assert found.speedup("slow").value == pytest.approx(1 / 1.03, abs=0.005)


def test_a_leak_of_one_token_is_found():
    leaked = (*TOKENS[:-1], 9)
    methods = {"target": [[run(1.0), run(1.0)], [run(1.0), run(1.0)]],
               "event": [[run(1.0), run(1.0)], [run(1.0), run(1.0, leaked)]]}  # fmt: skip
    found = pooled([block("pairs 0", methods)])
    assert found.equal("event") == (3, 4)
    assert speed_row(found, "event")[1] == "3/4"


@pytest.mark.parametrize(("questions", "size", "firsts"), [(1, 3, [0, 3, 6]), (4, 4, [0, 1])])
def test_blocks_part_the_pairs_and_never_a_clip(questions, size, firsts):
    plan = BlockPlan((Variant("target"),), Workload(8, questions=questions), size)
    parts = [plan.work_of(key) for key in plan.keys]
    assert [part.first for part in parts] == firsts
    assert sum(part.pairs for part in parts) == 8


@pytest.mark.parametrize(("questions", "size"), [(1, 3), (4, 8)])
def test_blocks_together_ask_what_the_whole_workload_asks(questions, size):
    """Kinds and wordings go on in turn from block to block: 20 pairs meet all kinds, and some in another wording."""
    work = Workload(20, questions=questions)
    plan = BlockPlan((Variant("target"),), work, size)

    def asked(part):
        return [(scene.seed, qa) for scene, every in questions_of(part) for qa in every]

    whole = asked(work)
    assert [one for key in plan.keys for one in asked(plan.work_of(key))] == whole
    assert {qa.kind for _, qa in whole} == set(scenes.KINDS)
    assert len({qa.question for _, qa in whole if qa.kind == scenes.KINDS[0]}) == 2
