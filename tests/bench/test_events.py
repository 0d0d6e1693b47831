"""The benchmark of the work on events: what is measured, and what is refused."""

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import concatenate, write_events
from crossdraft_lab.bench import events as bench


def test_the_made_up_window_has_the_requested_rate():
    window = bench.synthetic_window(rate_mev_s=1.0)
    assert len(window) == 50_000
    assert window.duration_us == bench.WINDOW_US - 1
    assert 0.2 < window.p.mean() < 0.8
    lit = len(np.unique(window.y.astype(int) * window.width + window.x)) / (window.width * window.height)
    assert 0.02 < lit < 0.3
    longer = concatenate(list(bench.repeated(window, 0.2)))
    assert len(longer) == 200_000
    assert longer.duration_us == 200_000 - 1


def test_every_row_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "simulation", lambda preset, repeats: bench.timed(preset, window, id, repeats, 0.2))
    monkeypatch.setattr(bench, "REAL_S", 1.0)
    window = bench.synthetic_window(rate_mev_s=0.2)
    path, names = tmp_path / "a.h5", []
    write_events(path, window)
    timings = bench.run_events(path, 1.5, 2, names.append)
    assert names == [timing.name for timing in timings]
    assert len(timings) == bench.ROWS
    rows = bench.to_json(timings, path)["timings"]
    assert [row["events"] for row in rows[:2]] == [10_000, 200_000]
    assert [row["reach_ms"] for row in rows[:2]] == [10, 400]
    assert all(row["ms"]["q1"] <= row["ms"]["median"] <= row["ms"]["q3"] for row in rows)
    shown = bench.lines(timings, path)
    assert shown[0] == f"recording: {path}"
    assert "to reach 400" in shown[2]
    assert [row["events"] for row in rows[2:4]] == [1_000_000, 1_000_000]  # as many as the reference pair reads
    for row, line in zip(rows[2:4], shown[3:5], strict=True):
        assert 40 < row["peak_mb"] < row["reach_mb"] == 300
        assert "; peak " in line


def test_simulation_is_timed_for_each_frame():
    timing = bench.simulation("ideal", 1)
    assert timing.ms.median > 0
    assert timing.events > 0


@pytest.mark.parametrize("seconds", [0.5, 61, float("nan"), float("inf")])
def test_a_length_that_makes_no_sense_is_refused(seconds):
    with pytest.raises(CrossdraftError, match="give 1 to 60 seconds"):
        bench.run_events(None, seconds, 1, print)


def test_no_runs_and_no_recording_are_refused(tmp_path):
    with pytest.raises(CrossdraftError, match="number of repeats is 0"):
        bench.run_events(None, 3, 0, print)
    with pytest.raises(CrossdraftError, match="no event recording"):
        bench.run_events(tmp_path / "absent.h5", 3, 1, print)
