"""An engine times its target's passes when it is loaded."""

from dataclasses import replace

import pytest

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.estimates import WIDTHS
from crossdraft.engine.pass_times import CHUNK, WIDE, calibrate, least_seconds
from tests.engine.recurrent.tiny import target_of, tiny
from tests.engine.zoo import ZOO, as_target


@pytest.mark.parametrize("name", ["video_llava", "qwen2_5_vl", "gemma3"])
def test_an_engine_knows_its_passes_before_the_first_request(name):
    target = as_target(*ZOO[name]())
    cost = CostModel()
    calibrate(target, cost, 4, tuple)
    assert cost.verify(1) > 0
    assert [width for width, seen in zip(WIDTHS, cost.verify.weights, strict=True) if seen] == [*WIDE, CHUNK]
    assert cost.plain.w == pytest.approx(1 + 0.95)  # of one row, and of four
    assert cost.costs(4).verify(1) < cost.verify(1)  # they share a pass
    assert cost.reading_worth == 0.0  # there are no cores to lend
    before = replace(cost.verify.one)
    calibrate(target, cost, 4, tuple)
    assert cost.verify.one == before  # measured once


def test_what_a_drafters_cores_are_worth_is_measured():
    target = as_target(*ZOO["video_llava"]())
    cost = CostModel()
    calibrate(target, cost, 1, lambda: (0,))
    assert cost.reading_worth > 0


def test_passes_of_a_recurrent_target_are_timed_by_whoever_asks():
    """As `crossdraft check` does, outside inference mode: its states are taken back after each pass."""
    one, four = least_seconds(target_of(tiny("lfm2")), 1, 1, [0, 3])
    assert one > 0
    assert four > 0
