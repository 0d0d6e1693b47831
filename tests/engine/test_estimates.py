"""The estimates of the policy, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.estimates import (
    AcceptanceByDepth,
    Ema,
    LinearFit,
    PassTimes,
    RequestDifficulty,
    expected_accepted,
)


def test_linear_fit_recovers_a_line_and_never_slopes_down():
    fit = LinearFit()
    for n in (1, 4, 9, 16):
        fit.add(n, 5 + 0.25 * n)
    assert fit(1) == pytest.approx(5.25)
    assert fit.slope == pytest.approx(0.25)
    down = LinearFit()
    for n in (1, 2, 3):
        down.add(n, 10 - n)
    assert down.slope == 0
    assert down(7) == pytest.approx(8, abs=0.1)
    assert LinearFit()(3) == 0


def test_an_anchored_fit_goes_through_nothing_until_it_knows_better():
    fit = LinearFit(anchor=2.0)
    fit.add(8, 4.0)
    assert fit(0) == pytest.approx(0)
    assert fit(2) == pytest.approx(1.0)
    for _ in range(200):
        for x in (2, 8):
            fit.add(x, 3.0)
    assert fit(2) == pytest.approx(3.0, abs=0.3)


def test_a_mean_fades():
    mean = Ema(decay=0.5)
    assert mean.value is None
    mean.add(0.0)
    mean.add(3.0)
    assert mean.value == pytest.approx(2.0)


def test_a_pass_over_one_token_is_no_part_of_the_line_of_the_others():
    """6 ms for one token, 8 + 0.1·(n − 2) after it: one line through all would make a plain step dearer than it is."""
    times = PassTimes()
    for n in (1, 2, 6, 12):
        times.add(n, 6.0 if n == 1 else 8.0 + 0.1 * (n - 2))
    assert (times(1), times(2), times(12)) == pytest.approx((6.0, 8.0, 9.0))
    assert times.slope == pytest.approx(0.1)


def test_passes_that_take_as_long_as_one_token_are_free_and_the_line_begins_after_them():
    """6 ms up to six tokens, and half a millisecond for each one more."""
    times = PassTimes()
    for n in (1, 2, 3, 5, 6, 8, 12, 16):
        times.add(n, 6.0 + 0.5 * max(0, n - 6))
    assert times.knee == 6
    assert [times(n) for n in (2, 6, 7, 32)] == pytest.approx([6.0, 6.0, 6.5, 19.0])
    assert times.slope == pytest.approx(0.5)
    prior = times.as_prior()
    assert prior(32) == pytest.approx(19.0)
    prior.add(2, 9.0)
    assert prior(2) > 6.5  # it weighs little


@pytest.mark.parametrize("wide", [7.1, 8.3, 9.7, 13.0])
def test_two_widths_alone_say_nothing_of_a_knee(wide):
    times = PassTimes()
    times.add(1, 6.1)
    times.add(16, wide)
    assert times.knee == 1
    assert times(8) == times(16) == wide  # nor of a slope


def test_wider_passes_that_take_as_long_leave_the_time_of_one_token_as_it_is():
    times = PassTimes()
    times.add(1, 10.0)
    for _ in range(50):
        times.add(4, 9.5)
        times.add(5, 10.5)
    assert times(1) == 10.0


def test_noise_on_widths_that_hardly_differ_is_no_slope():
    """8 tokens took 9 ms and 9 took 12: three a token, but 2.5 tokens after the sixth cost 4.5 together."""
    times = PassTimes()
    for n, ms in ((1, 6.0), (8, 9.0), (9, 12.0)):
        times.add(n, ms)
    assert times.knee == 6
    assert times.slope == pytest.approx(4.5 / 2.5, rel=0.02)
    assert PassTimes()(4) == 0
    one = PassTimes()
    one.add(1, 6.0)
    assert one(16) == 6.0  # nothing wider is known: worth a try


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 100)), min_size=1, max_size=20), st.integers(1, 63))
def test_a_wider_pass_is_never_faster(observed, n):
    times = PassTimes()
    for width, seconds in observed:
        times.add(width, seconds)
    assert times(n) <= times(n + 1) + 1e-9


def test_acceptance_by_depth_by_hand():
    """No prior but the rate over all positions: levels 1 and 2 were kept twice, level 3 was once of two."""
    acceptance = AcceptanceByDepth(decay=1.0, prior=1.0, rate=Ema(decay=1.0))
    acceptance.saw_acceptance(3, 3)
    acceptance.saw_acceptance(3, 2)
    assert acceptance.alpha == pytest.approx(5 / 6)
    assert acceptance.rates(4) == pytest.approx([(2 + 5 / 6) / 3] * 2 + [(1 + 5 / 6) / 3, 5 / 6])
    acceptance.saw_draft(asked=3, sent=1)
    assert acceptance.arrivals(4) == pytest.approx([1.0, 0.3 / 1.3, 0.3 / 1.3, 1.0])
    assert len(acceptance.rates(100)) == len(acceptance.arrivals(100)) == 100


def test_a_position_that_is_reached_no_more_becomes_like_all_others():
    acceptance = AcceptanceByDepth()
    for _ in range(100):
        acceptance.saw_acceptance(4, 3)  # the fourth never holds
    assert acceptance.rates(4)[3] < 0.2
    for _ in range(300):
        acceptance.saw_acceptance(1, 1)  # drafts of one: always kept
    assert acceptance.rates(4)[3] > 0.9


def test_difficulty_by_hand():
    """k = 1, three levels of probability 1/e: two kept and the third refused, half way. (1 + 1) / (1 + 1 + 1 + 1/2)."""
    difficulty = RequestDifficulty(prior=1.0, decay=1.0)
    assert difficulty.value == 1.0
    difficulty.add([math.exp(-1)] * 3, 2)
    assert difficulty.value == pytest.approx(2 / 3.5)
    difficulty.add([math.exp(-1)], 0)
    assert difficulty.value == pytest.approx(3 / 4)


@pytest.mark.parametrize("true", [0.5, 1.0, 2.0])
def test_difficulty_finds_the_power_that_makes_probs_true(true):
    """Levels expected at 0.95 that hold with probability 0.95^z: about 1/(1 − 0.95^z) of them until one does not."""
    difficulty = RequestDifficulty(prior=1.0, decay=1.0)
    run = round(1 / (1 - 0.95**true)) - 1
    for _ in range(200):
        difficulty.add([0.95] * (run + 1), run)
    assert difficulty.value == pytest.approx(true, rel=0.1)


def test_certain_and_impossible_levels_are_finite():
    difficulty = RequestDifficulty()
    difficulty.add([1.0, 0.0], 1)
    difficulty.add([], 0)
    assert 0 < difficulty.value < 2


def test_a_ridge_fit_needs_points_that_differ():
    """Two points near each other, one of them cold: next to no slope. Far apart: hardly any loss."""
    near, far = LinearFit(ridge=64.0), LinearFit(ridge=64.0)
    for line, points in ((near, ((20, 10.0), (24, 40.0))), (far, ((20, 10.0), (80, 25.0)) * 50)):
        for x, y in points:
            line.add(x, y)
    assert near.slope < 0.5  # 7.5 by least squares
    assert far.slope == pytest.approx(0.25, rel=0.1)


def test_expected_accepted_counts_only_the_prefix():
    # The audit's examples: iid acceptance over a long chain, not k times the rate.
    assert expected_accepted([0.65] * 28) == pytest.approx(1.857, abs=1e-3)
    assert expected_accepted([0.8] * 27) == pytest.approx(3.990, abs=1e-3)
    assert expected_accepted([0.279] * 26) == pytest.approx(0.387, abs=1e-3)
