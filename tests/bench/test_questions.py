"""Several questions about a clip: who keeps what, against whom, and from what the intervals are drawn."""

import pytest

from crossdraft.cli.cores import Cores
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.measure import Results, Run
from crossdraft_lab.bench.questions import COLUMNS, questions_study
from crossdraft_lab.bench.study import Answers, rows_json
from crossdraft_lab.bench.workload import Workload


def run(seconds, tokens=(1, 2)):
    return Run(tokens, seconds, seconds / 2, {}, 1)


def test_figures_worked_by_hand():
    """Two clips, two questions about each, asked twice."""
    results = Results(
        {
            "hf": [[run(4.0)] * 2] * 4,
            "hf-all": [[run(3.0)] * 2] * 4,
            "target (no cache)": [[run(2.0)] * 2] * 4,
            "target": [[run(2.0)] * 2, [run(1.0)] * 2] * 2,
            "glance": [[run(2.0)] * 2, [run(0.5), run(0.5, (1, 3))]] * 2,
        }
    )
    found = Answers(tuple({"scene": seed} for seed in (1, 1, 2, 2)), results)
    glance = rows_json(COLUMNS, found, "glance")
    assert glance["identical"] == "6/8"
    assert (glance["first_ms"], glance["next_ms"], glance["next_ttft_ms"]) == (2000, 500, 250)
    values = {of: one["value"] for of, one in glance["speedup"].items()}  # against hf-all, the faster one
    assert values == {"hf": 2.4, "target without cache": 1.6, "target with cache": 1.2}
    assert glance["speedup"]["hf"]["ci95"] == [2.4, 2.4]  # both clips took as long: each is one draw


def test_one_question_a_clip_has_no_next_ones():
    runs = {name: [[run(1.0)], [run(3.0)]] for name in ("hf", "target", "target (no cache)")}
    row = rows_json(COLUMNS, Answers(({"scene": 1}, {"scene": 2}), Results(runs)), "target")
    assert row["next_ms"] == row["first_ms"] == 2000


def test_wrong_drafters_are_refused_before_anything_is_loaded():
    with pytest.raises(CrossdraftError, match="evnt"):
        questions_study(Models(), Workload(2), ("evnt",))


def test_core_assignments_that_are_no_other_are_left_out():
    both, one = (
        questions_study(Models(), Workload(2), ("memory",), cores=cores) for cores in (Cores((0,), (1,)), None)
    )
    assert [variant.name for variant in both.variants][:2] == ["hf", "hf-all"]
    assert [variant.name for variant in one.variants] == ["hf", "target (no cache)", "target", "memory"]
