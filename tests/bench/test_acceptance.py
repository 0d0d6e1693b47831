"""τ of one drafter over τ of others under the same rounds."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.acceptance import check_drafters, compare, compare_acceptance
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.workload import Workload, items


def run(accepted, rounds):
    return Run((1,) * (accepted + rounds), 1.0, 0.5, {}, rounds, (accepted,), (rounds,))


def values(by_kind):
    return {kind: interval.value for kind, interval in by_kind.items()}


def test_ratio_by_hand():
    # event: 1 + 9/6 = 2.5 over both pairs, 1 + 6/2 = 4 on the first; blind: 1 + 3/6 = 1.5, and 1 + 1/2.
    event = [run(6, 2), run(3, 4)]
    blind = [run(1, 2), run(2, 4)]
    found = compare({"event": event, "blind": blind}, ["layout", "count"], nodes=8)
    assert found.drafters["event"].tau.value == pytest.approx(2.5)
    assert found.drafters["blind"].tau.value == pytest.approx(1.5)
    assert found.ratio.value == pytest.approx(2.5 / 1.5)
    assert found.ratio.low <= found.ratio.value <= found.ratio.high
    assert values(found.drafters["event"].by_kind) == pytest.approx({"layout": 4, "count": 1.75})
    assert values(found.ratio_by_kind) == pytest.approx({"layout": 4 / 1.5, "count": 1.75 / 1.5})
    assert found.drafters["event"].per_position == pytest.approx((1.5,))
    assert found.drafters["event"].depth == 1  # one node deep in each of six passes
    assert found.to_json()["ratio"] == {"value": 1.666667, "ci95": [1.166667, 2.666667], "n": 2}
    assert found.to_json()["ratio_by_kind"]["layout"]["n"] == 1


def test_the_best_of_the_others_may_differ_by_kind():
    runs = {"union": [run(6, 2), run(6, 2)], "event": [run(4, 2), run(4, 2)], "memory": [run(0, 2), run(6, 2)]}
    found = compare(runs, ["layout", "count"], nodes=8)
    assert found.best == "event"  # 3 over all; memory has 2.5, though 4 on the second
    assert found.ratio.value == pytest.approx(4 / 3)
    assert values(found.ratio_by_kind) == pytest.approx({"layout": 4 / 3, "count": 4 / 4})


@pytest.mark.parametrize("specs", [(), ("event",), ("event", "event"), ("event", "evnt")])
def test_what_makes_no_comparison(specs):
    with pytest.raises(CrossdraftError, match=r"two different drafters|evnt"):
        check_drafters(specs)


def test_the_better_drafter_wins_on_real_rounds(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    pairs = list(items(Workload(pairs=3, max_new_tokens=24)))
    ticks = []
    found = compare_acceptance(models.load_target(), models, pairs, nodes=4, tick=ticks.append)
    assert found.drafters["event"].tau.value > found.drafters["blind"].tau.value > 1
    assert len(found.drafters["event"].per_position) <= 4
    assert sorted(ticks) == ["blind"] * 3 + ["event"] * 3
