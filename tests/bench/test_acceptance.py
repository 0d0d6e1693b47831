"""τ of one drafter over τ of others under the same rounds."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.acceptance import acceptance_study, compare, compared_json, compared_table
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.measure import Results, Run
from crossdraft_lab.bench.study import Answers
from crossdraft_lab.bench.workload import Workload

PAIRS = ({"scene": 1, "kind": "layout"}, {"scene": 2, "kind": "count"})


def run(accepted, rounds):
    return Run((1,) * (accepted + rounds), 1.0, 0.5, {}, rounds, (accepted,), (rounds,))


def answers(**runs):
    return Answers(PAIRS, Results({name: [[one] for one in each] for name, each in runs.items()}))


def test_ratio_by_hand():
    # event: 1 + 9/6 = 2.5 over both pairs, 1 + 6/2 = 4 on the first; blind: 1 + 3/6 = 1.5, and 1 + 1/2.
    found = compared_json(compare(answers(event=[run(6, 2), run(3, 4)], blind=[run(1, 2), run(2, 4)])))
    assert (found["drafters"]["event"]["tau"], found["drafters"]["blind"]["tau"]) == (2.5, 1.5)
    assert found["drafters"]["event"]["by_kind"]["count"]["tau"] == 1.75
    assert found["drafters"]["event"]["depth"] == 1  # one node deep in each of six passes
    assert found["ratio"] == {"value": 1.666667, "ci95": [1.166667, 2.666667], "n": 2}
    assert found["ratio_by_kind"]["layout"]["n"] == 1


def test_the_best_of_the_others_may_differ_by_kind():
    runs = {"union": [run(6, 2), run(6, 2)], "event": [run(4, 2), run(4, 2)], "memory": [run(0, 2), run(6, 2)]}
    found = compare(answers(**runs))
    assert found["best_other"] == "event"  # 3 over all; memory has 2.5, though 4 on the second
    assert found["ratio"].value == pytest.approx(4 / 3)
    assert {kind: one.value for kind, one in found["ratio_by_kind"].items()} == {"layout": 4 / 3, "count": 1}
    assert [row[0] for row in compared_table(found).rows] == ["layout", "count", "all", "depth of a draft"]


@pytest.mark.parametrize("specs", [(), ("event",), ("event", "event"), ("event", "evnt")])
def test_what_makes_no_comparison(specs):
    with pytest.raises(CrossdraftError, match=r"two different drafters|evnt"):
        acceptance_study(Models(), Workload(2), specs)
