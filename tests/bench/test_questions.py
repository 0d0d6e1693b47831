"""Several questions about a clip: who keeps what, against whom, and from what the intervals are drawn."""

import pytest

from crossdraft.cli.cores import Cores
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.measure import Results, Run
from crossdraft_lab.bench.questions import Questions, rows, run_questions, to_json
from crossdraft_lab.bench.workload import Item, Workload, items


def run(seconds, tokens=(1, 2)):
    return Run(tokens, seconds, seconds / 2, {}, 1)


def test_figures_worked_by_hand():
    """Two clips, two questions about each, asked twice."""
    asked = [Item(seed, "kind", Request("?")) for seed in (1, 1, 2, 2)]
    results = Results(
        {
            "hf": [[run(4.0)] * 2] * 4,
            "hf-all": [[run(3.0)] * 2] * 4,
            "target (no cache)": [[run(2.0)] * 2] * 4,
            "target": [[run(2.0)] * 2, [run(1.0)] * 2] * 2,
            "glance": [[run(2.0)] * 2, [run(0.5), run(0.5, (1, 3))]] * 2,
        }
    )
    found = {row.name: row for row in rows(results, asked, 2)}
    glance = found["glance"]
    assert (glance.identical, glance.total) == (6, 8)
    assert (glance.first_ms, glance.next_ms, glance.next_ttft_ms) == (2000, 500, 250)
    assert glance.speedup["hf"].value == pytest.approx(24 / 10)  # against hf-all, the faster one
    assert glance.speedup["target without cache"].value == pytest.approx(16 / 10)
    assert glance.speedup["target with cache"].value == pytest.approx(12 / 10)
    assert glance.speedup["hf"].low == glance.speedup["hf"].high  # both clips took as long: each is one draw
    assert found["target"].identical == 8


def test_one_question_a_clip_has_no_next_ones():
    asked = [Item(seed, "kind", Request("?")) for seed in (1, 2)]
    (row,) = rows(Results({"target (no cache)": [[run(1.0)], [run(3.0)]]}), asked, 1)
    assert row.next_ms == row.first_ms == 2000


def test_questions_about_one_scene_follow_each_other():
    work = Workload(5, questions=2)
    found = list(items(work))
    assert work.scenes == 3
    seeds = [item.seed for item in found]
    assert seeds == [seeds[0]] * 2 + [seeds[2]] * 2 + [seeds[4]]
    assert len({*seeds}) == 3
    assert len({item.request.prompt for item in found[:2]}) == 2


def test_wrong_numbers_are_refused_before_anything_is_loaded():
    with pytest.raises(CrossdraftError, match="questions about a clip is 0"):
        Workload(5, questions=0)
    with pytest.raises(CrossdraftError, match="evnt"):
        Questions(Models(), Workload(2), ("evnt",))


def test_core_assignments_that_are_no_other_are_left_out():
    names = Questions(Models(), Workload(2), ("memory",), cores=Cores((0,), (1,))).names
    one = Questions(Models(), Workload(2), ("memory",)).names
    assert names[:2] == ("hf", "hf-all")
    assert one == ("hf", "target (no cache)", "target", "memory")


def test_a_small_run_of_the_reference_pair(tmp_path):
    work = Workload(4, max_new_tokens=4, files=tmp_path, questions=2)
    plan = Questions(Models(), work, ("memory",), warm_ups=0)
    ticks = []
    found = {row.name: row for row in run_questions(plan, ticks.append)}
    assert len(ticks) == plan.runs
    assert [row.identical for row in found.values()] == [4] * 4
    report = to_json(plan, list(found.values()))
    assert [method["name"] for method in report["methods"]] == list(plan.names)
    assert report["workload"]["questions"] == 2
