"""The estimates of the policy, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.estimates import (
    WIDTHS,
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


def test_a_step_from_one_token_to_two_is_no_slope_of_wider_passes():
    """6 ms for one token, 8 + 0.1·(n − 2) after it."""
    times = PassTimes()
    for n in (1, 2, 6, 12, 256):
        times.add(n, 6.0 if n == 1 else 8.0 + 0.1 * (n - 2))
    assert [times(n) for n in (1, 2, 9, 12)] == pytest.approx([6.0, 8.0, 8.7, 9.0])
    assert times.slope == pytest.approx(0.1)


def test_nothing_is_known_beyond_the_widest_pass_so_that_wider_ones_are_tried():
    times = PassTimes()
    assert times(4) == 0
    times.add(1, 6.0)
    assert (times(16), times.slope) == (6.0, 0.0)
    times.add(16, 9.0)
    assert [times(n) for n in (8.5, 16, 64)] == pytest.approx([7.5, 9.0, 9.0])


def test_a_machine_that_becomes_slower_changes_the_level_and_not_the_shape():
    """By hand: after 50 passes 1.5 s were expected of sixteen tokens; they took 2: 0.5 / 51 of it goes to the ratio."""
    times = PassTimes(one=Ema(decay=0.9, weight=9.0, total=9.0))
    times.measure({1: 1.0, 6: 1.0, 16: 1.5}, 50.0)
    times.add(16, 2.0)
    ratio = 1.5 + 0.5 / 51
    assert times.shape(16) == pytest.approx(ratio)
    assert times(1) == pytest.approx((9.0 * 0.9 + 2.0 / ratio) / 9.1)
    for _ in range(40):
        times.add(16, 3.0)
    assert times(1) == pytest.approx(2.0, rel=0.15)
    assert times(6) / times(1) == pytest.approx(1.0)
    assert 1.5 < times(16) / times(1) < 1.8


def test_a_shape_that_was_measured_wrongly_is_mended_by_passes_of_all_widths():
    """Sixteen tokens were taken for as cheap as one, and take twice as long."""
    times = PassTimes()
    times.measure({1: 1.0, 8: 1.0, 16: 1.0}, 20.0)
    for _ in range(300):
        for n, seconds in ((1, 1.0), (8, 1.2), (16, 2.0)):
            times.add(n, seconds)
    assert [times(n) for n in (1, 8, 16)] == pytest.approx([1.0, 1.2, 2.0], rel=0.1)


def test_a_pass_between_two_widths_moves_both_by_its_nearness():
    """Ten tokens lie in the middle of 8 and 12: each gives way by half a pass, over twenty and a half."""
    times = PassTimes(one=Ema(weight=1.0, total=1.0))
    times.measure({1: 1.0, 8: 1.0, 12: 1.4}, 20.0)
    times.add(10, 1.2 + 0.41)
    assert [times.shape(n) for n in (8, 12)] == pytest.approx([1.01, 1.41])
    assert [times.weights[WIDTHS.index(n)] for n in (6, 8, 12)] == [0.0, 20.5, 20.5]


def test_a_width_that_was_not_seen_begins_on_the_line():
    """33 tokens took as long as the line through 32 and 256 says: so do 64, of which they are a 32nd part."""
    times = PassTimes(one=Ema(weight=1.0, total=1.0))
    times.measure({1: 1.0, 32: 2.0, 256: 16.0}, 20.0)
    times.add(33, 2.0 + 1 / 16)
    assert [times.shape(n) for n in (32, 64, 256)] == pytest.approx([2.0, 4.0, 16.0])


def test_a_pass_that_the_machine_stopped_counts_as_twice_the_usual_one():
    for width in (1, 6, 8):
        stopped, slow = PassTimes(), PassTimes()
        for times, seconds in ((stopped, 500.0), (slow, 2.0)):
            for n in (1, 8):
                times.add(n, 1.0)
            times.add(width, seconds)
        assert stopped == slow


def test_widths_whose_times_fall_share_their_mean():
    """A pass over eight tokens was disturbed: 1.7, and 1.2 over twelve, are 1.45 for both; then 2.45 moves twelve."""
    times = PassTimes(one=Ema(weight=1e9, total=1e9))
    times.measure({1: 1.0, 2: 0.9, 8: 1.7, 12: 1.2, 16: 1.6}, 1.0)
    assert [times.shape(n) for n in (2, 8, 12, 16)] == pytest.approx([1.0, 1.45, 1.45, 1.6])
    times.add(12, 2.45)  # 1.95, with the weight of two: it shares with sixteen
    assert [times.shape(n) for n in (8, 12, 16)] == pytest.approx([1.45, 5.5 / 3, 5.5 / 3])


def test_a_shape_that_cannot_show_what_it_sees_does_not_run_away():
    """Four tokens take less time than one; when that ends, a few passes show it."""
    times = PassTimes()
    for _ in range(2000):
        times.add(1, 1.0)
        times.add(4, 0.95)
    for _ in range(50):
        times.add(1, 1.0)
        times.add(4, 1.5)
    assert times.shape(4) > 1.15


def test_a_width_that_was_too_slow_is_tried_again_though_narrower_drafts_pay():
    """By hand: half a pass more counts as 0.1 after log 0.2 / log 0.99 = 160.1 passes that were narrower."""
    times = PassTimes()
    for n, seconds in ((1, 1.0), (8, 1.0), (16, 1.5)):
        times.add(n, seconds)
    assert times.tried(0.99)(16) == 1.5
    for _ in range(161):
        times.add(8, 1.0)
    assert times.tried(0.99)(16) == pytest.approx(1.0 + 0.5 * 0.99**161)
    assert times.tried(0.99)(16) < 1.1
    assert times(16) == pytest.approx(1.5)
    times.add(16, 1.5)
    assert times.tried(0.99)(16) == pytest.approx(1.5)


def test_widths_that_nothing_uses_do_not_make_the_used_ones_cheap():
    times = PassTimes(one=Ema(weight=1.0, total=1.0))
    times.measure({1: 1.0, 8: 1.5, 256: 16.0}, 20.0)
    for _ in range(2000):
        times.add(8, 1.5)
    assert [times.tried(0.99)(n) for n in (8, 256)] == pytest.approx([1.5, 1.0])


def test_rows_that_share_a_pass_are_estimated_from_their_tokens_together():
    """A pass over 2, 8 and 16 tokens takes 1, 1.5 and 2.5 times as long: two rows of four tokens take 1.5 together."""
    times = PassTimes(one=Ema(weight=1.0, total=1.0))
    times.measure({1: 1.0, 2: 1.0, 8: 1.5, 16: 2.5}, 20.0)
    two = times.of_rows(2)
    assert [two(n) for n in (1, 4, 8)] == pytest.approx([0.5, 0.75, 1.25])
    assert times.of_rows(2, 0.7)(8) == pytest.approx(0.7 * 2.5)
    two.add(8, 2.5)
    assert two.shape(8) > 3.0  # it weighs little
    assert PassTimes().of_rows(4)(3) == 0.0


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
