import math

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.figure import Figure, by_scene
from crossdraft_lab.bench.statistics import Interval


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
    assert clustered.interval.arms == pytest.approx(one_each.interval.arms)
    assert sum(as_runs.interval.arms) < 0.3 * sum(clustered.interval.arms), "runs taken for scenes: a false precision"


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
