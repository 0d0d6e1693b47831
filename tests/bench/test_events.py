import json

import numpy as np
import pytest

from crossdraft.bench import events as bench
from crossdraft.events import concatenate, write_events


def test_the_made_up_window_has_the_rate_asked_for():
    window = bench.synthetic_window(rate_mev_s=1.0)
    assert len(window) == 50_000
    assert window.duration_us == bench.WINDOW_US - 1
    assert 0.2 < window.p.mean() < 0.8
    lit = len(np.unique(window.y.astype(int) * window.width + window.x)) / (window.width * window.height)
    assert 0.02 < lit < 0.3
    longer = concatenate(list(bench.repeated(window, 0.2)))
    assert len(longer) == 200_000
    assert longer.duration_us == 200_000 - 1


def test_every_row_is_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        bench, "simulation", lambda preset, repeats: bench.timed(preset, window, id, repeats, 0.2)
    )
    window = bench.synthetic_window(rate_mev_s=0.2)
    write_events(tmp_path / "a.h5", window)
    options = ["--recording", str(tmp_path / "a.h5"), "--seconds", "1.5", "--repeats", "2"]
    assert bench.main([*options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = report["timings"]
    assert [row["events"] for row in rows[:2]] == [10_000, 200_000]
    assert [row["reach_ms"] for row in rows[:2]] == [10, 400]
    assert all(row["ms"]["q1"] <= row["ms"]["median"] <= row["ms"]["q3"] for row in rows)
    assert "load_1min" in report["environment"]
    assert bench.main(options) == 0
    assert "to reach 400" in capsys.readouterr().out


def test_simulation_is_timed_for_each_frame():
    timing = bench.simulation("ideal", 1)
    assert timing.ms.median > 0
    assert timing.events > 0


def test_a_missing_recording_is_one_sentence(capsys, tmp_path):
    assert bench.main(["--recording", str(tmp_path / "absent.h5")]) == 2
    assert "no event recording" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--repeats", "0"])
