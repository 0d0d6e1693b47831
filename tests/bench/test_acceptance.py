"""τ of the event drafter over τ of its blind twin."""

import pytest

from crossdraft.bench.acceptance import compare, compare_acceptance
from crossdraft.bench.contestants import Models
from crossdraft.bench.measure import Run
from crossdraft.bench.workload import Workload, items


def run(accepted, rounds):
    return Run((1,), 1.0, 0.5, {}, rounds, accepted, (accepted,), (rounds,))


def test_ratio_by_hand():
    # event: 1 + 9/6 = 2.5 over both pairs, 1 + 6/2 = 4 on the first; blind: 1 + 3/6 = 1.5, and 1 + 1/2.
    event = [run(6, 2), run(3, 4)]
    blind = [run(1, 2), run(2, 4)]
    found = compare(event, blind, ["layout", "count"], nodes=8)
    assert found.event.tau.value == pytest.approx(2.5)
    assert found.blind.tau.value == pytest.approx(1.5)
    assert found.ratio.value == pytest.approx(2.5 / 1.5)
    assert found.ratio.low <= found.ratio.value <= found.ratio.high
    assert found.by_kind["layout"] == pytest.approx((4, 1.5))
    assert found.event.per_position == pytest.approx((1.5,))
    assert found.to_json()["ratio"] == {"value": 1.667, "ci95": [1.167, 2.667]}


def test_the_better_drafter_wins_on_real_rounds(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    pairs = list(items(Workload(pairs=3, max_new_tokens=24)))
    ticks = []
    found = compare_acceptance(models.load_target(), models, pairs, nodes=4, tick=ticks.append)
    assert found.event.tau.value > found.blind.tau.value >= 1
    assert len(found.event.per_position) <= 4
    assert sorted(ticks) == ["blind"] * 3 + ["event"] * 3
