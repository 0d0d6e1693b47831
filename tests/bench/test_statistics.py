"""The arithmetic of reports and figures, against numbers worked by hand and against simulated truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.statistics import (
    Figure,
    Interval,
    Quartiles,
    acceptance_length,
    bootstrap,
    by_scene,
    per_position,
    percentile,
    quartiles,
    ratio,
    ratio_per_token,
)

seconds = st.lists(st.floats(0.01, 10), min_size=2, max_size=12)


def test_quartiles_by_hand():
    assert quartiles([4, 1, 3, 2]) == Quartiles(2.5, 1.75, 3.25)
    assert quartiles([7]) == Quartiles(7, 7, 7)


def test_ratio_is_of_sums_not_a_mean_of_ratios():
    # 10/1 and 1/2: the mean of ratios would be 5.25.
    found = ratio([10, 1], [1, 2])
    assert found.value == pytest.approx(11 / 3)
    # The four equally likely samples of two pairs give 10, 11/3 (twice) and 1/2.
    assert (found.low, found.high) == pytest.approx((0.5, 10))


def test_a_constant_ratio_has_no_width():
    found = ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))


def test_per_token_a_shorter_answer_is_not_a_faster_one():
    # 12 s for 60 tokens against 3 s for 15: the same pace, though the ratio of times is 4.
    found = ratio_per_token([8.0, 4.0], [40, 20], [1.0, 2.0], [5, 10])
    assert (found.low, found.value, found.high) == pytest.approx((1, 1, 1))
    # (10 + 2) s / 30 tokens over (1 + 1) s / 10 tokens = 0.4 / 0.2, pooled: not the mean of 0.5/0.2 and 0.2/0.2.
    assert ratio_per_token([10.0, 2.0], [20, 10], [1.0, 1.0], [5, 5]).value == pytest.approx(2)


@given(seconds, st.floats(0.1, 10))
def test_ratio_scales_with_its_numerator(times, factor):
    assert ratio([factor * t for t in times], times, seed=3).value == pytest.approx(factor)


@given(seconds)
def test_an_interval_holds_its_extremes_and_is_reproducible(times):
    ones = [1.0] * len(times)
    found = ratio(times, ones)
    assert min(times) - 1e-9 <= found.low <= found.high <= max(times) + 1e-9
    assert ratio(times, ones) == found


def test_bootstrap_covers_the_truth_about_as_often_as_it_claims():
    rng = np.random.default_rng(1)
    inside = 0
    for trial in range(200):
        # A baseline of mean e^{1/8}, a method exactly twice as fast on average, noise on each pair.
        baseline = rng.lognormal(0, 0.5, 40)
        method = baseline / 2 * rng.lognormal(-0.02, 0.2, 40)
        found = bootstrap(lambda c, b=baseline, m=method: b[c].sum(-1) / m[c].sum(-1), 40, seed=trial)
        inside += found.low <= 2.0 <= found.high
    assert 0.88 <= inside / 200 <= 0.99


def test_acceptance_length_counts_the_bonus_and_pools_over_pairs():
    assert acceptance_length([(9, 3)]).value == 3
    # 15/6 over both pairs: not the mean of 8/2 and 7/4, which are what the draws of one pair twice give.
    found = acceptance_length([(8, 2), (7, 4)])
    assert (found.low, found.value, found.high) == pytest.approx((1.75, 2.5, 4))


def test_a_target_alone_has_an_acceptance_length_without_width():
    found = acceptance_length([(40, 40), (60, 60), (51, 51)])
    assert (found.low, found.value, found.high) == (1, 1, 1)


def test_per_position_pools_answers_of_different_depth():
    # Depth 1: 2 of 3 and 1 of 1; depth 2: 1 of 2 and nothing offered.
    assert per_position([[2, 1], [1]], [[3, 2], [1]]) == [0.75, 0.5]
    assert per_position([], []) == []


def test_a_percentile_is_numpys_and_whole_runs_are_drawn():
    random = np.random.default_rng(0)
    runs = [random.exponential(1.0, size) for size in (3, 1, 40, 7)]
    for rank in (0, 50, 99, 100):
        found = percentile(runs, rank)
        assert found.value == pytest.approx(np.percentile(np.concatenate(runs), rank))
        assert found.low <= found.value <= found.high
        assert found.n == 4
    slow = bootstrap(
        lambda chosen: np.apply_along_axis(lambda row: np.median(np.concatenate([runs[i] for i in row])), -1, chosen), 4
    )
    assert (percentile(runs, 50).low, percentile(runs, 50).high) == pytest.approx((slow.low, slow.high))
    one = percentile([[1.0, 2.0, 4.0]], 50)
    assert (one.low, one.high) == (2.0, 2.0), "one run says nothing of others"
    assert percentile([[], []], 50) is None


def test_a_figure_is_never_without_its_interval_and_n():
    shown = Figure.mean("τ", [2.0, 4.0, 3.0], ["a", "b", "c"], note="greedy")
    assert str(shown) == "τ 3.00 [2.00, 4.00; n=3 scenes] (greedy)"
    assert "[" in f"{shown}"
    assert str(Figure("x", Interval(1, 1, 1, 1), "clips")) == "x 1.00 [no interval; n=1 clip]"
    assert shown.to_json() == {
        "name": "τ", "value": 3.0, "ci95": [2.0, 4.0], "n": 3, "of": "scenes", "note": "greedy"
    }  # fmt: skip


def test_what_is_no_figure():
    for interval in (Interval(1, 1, 1, 0), Interval(math.nan, 0, 1, 5), Interval(1, 1, math.inf, 5)):
        with pytest.raises(CrossdraftError, match="no figure"):
            Figure("x", interval)
    with pytest.raises(CrossdraftError, match="0 values"):
        Figure.mean("x", [], [])
    with pytest.raises(CrossdraftError, match="needs the scene"):
        Figure.mean("x", [1.0], ["a", "b"])


def test_a_ratio_is_of_sums():
    figure = Figure.ratio("speed-up", [10, 1], [5, 1], ["a", "b"])
    assert figure.value == pytest.approx(11 / 6), "not (2 + 1) / 2"
    assert figure.n == 2


def test_repeated_runs_of_a_scene_narrow_nothing():
    rng = np.random.default_rng(0)
    scenes = np.repeat(np.arange(20), 50)
    values = rng.normal(10, 3, 20)[scenes]  # what a scene takes; its runs all take the same
    clustered = Figure.mean("x", values.tolist(), scenes.tolist())
    as_runs = Figure.mean("x", values.tolist(), list(range(1000)))
    one_each = Figure.mean("x", values[::50].tolist(), list(range(20)))
    assert clustered.n == 20
    widths = [one.interval.high - one.interval.low for one in (clustered, one_each, as_runs)]
    assert widths[0] == pytest.approx(widths[1])
    assert widths[2] < 0.3 * widths[0], "runs taken for scenes: a false precision"


def test_the_interval_holds_the_truth_as_often_as_it_says():
    hits = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        scene = rng.normal(5, 1, 40)
        runs = np.repeat(scene, 3) + rng.normal(0, 0.2, 120)
        interval = Figure.mean("x", runs.tolist(), np.repeat(np.arange(40), 3).tolist()).interval
        hits += interval.low <= 5 <= interval.high
    assert 0.88 <= hits / 150 <= 0.99


def test_sums_by_scene():
    assert by_scene([1, 2, 3, 4], ["b", "a", "b", "c"]).tolist() == [4, 2, 4]
