"""Whatever a machine's clock does to the measurements, a plan is made of times that can be."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.estimates import Ema, LinearFit, RequestDifficulty

SECONDS = st.floats(1e-6, 1e4) | st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e300])
ROUND = st.tuples(
    st.integers(0, 40),  # levels drafted
    st.integers(0, 3),  # levels asked for beyond those
    st.floats(1, 4),  # nodes a level
    SECONDS,  # waited
    SECONDS,  # the pass
    st.floats(0, 1),  # part of the draft that was kept
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROUND, max_size=14))
def test_no_history_makes_a_plan_that_cannot_be(history):
    """After every round a model is asked for all that it is asked for in a running engine."""
    model, request = CostModel(), RequestDifficulty()
    for levels, beyond, width, waited, passed, kept in history:
        nodes = round(levels * width)
        model.saw_draft(levels + beyond, levels, nodes, waited)
        model.saw_pass(1 + beyond, 1 + nodes, passed)
        model.wait_hidden.add(nodes, waited)
        model.ride.add(1 + nodes, passed)
        model.step.add(waited)
        model.saw_acceptance(request, levels, round(kept * levels), [0.5] * levels if beyond else ())
        for rows in (1, 2):
            plan = model.plan(30, request, rows)
            assert 0 <= plan.depth <= 30
            assert plan.token_s >= 0
            assert math.isfinite(plan.token_s)
            assert 0 <= model.node_gain(request, plan.token_s, rows) <= 1
            longest = model.longest_wait(plan.depth, request, rows)
            assert longest is None or (longest >= 0 and math.isfinite(longest))
            model.token_s = plan.token_s
            model.began_round(plan.depth, rows)
        assert 0 <= model.hidden_nodes(64) <= 64
        model.hiding_pays(16)
        assert all(model.wait(levels) >= 0 for levels in range(40))
        model.worthwhile([-1, 0, 0], [0.9, 0.5, 0.1], request)


def test_two_late_deep_drafts_do_not_make_shallow_ones_take_less_than_no_time():
    """The history that killed an engine: its line through (12, 148 ms) and (5, 4 ms) is at -86 ms for no levels."""
    model = CostModel()
    for levels, seconds in ((12, 0.1483), (8, 0.005), (5, 0.0035), (16, 0.2012)):
        model.wait.add(levels, seconds)
    assert (model.wait(0), model.wait(1)) == (0, 0)
    assert model.wait(16) == pytest.approx(0.17, abs=0.03)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_no_clock_can_show_is_no_time(value):
    mean, fit = Ema(), LinearFit()
    mean.add(value)
    fit.add(1, value)
    assert mean.value == 0
    assert fit(1) == 0
