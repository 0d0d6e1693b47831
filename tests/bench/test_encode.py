"""`crossdraft bench encode`."""

import json
import os

import pytest

from crossdraft.cli.main import main

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="needs two CPU cores")
def test_it_times_three_ways(pair, tmp_path, capsys):
    where = f"cpu:{CORES[0]},cpu:{CORES[1]}"
    command = ["bench", "encode", "--target", str(pair.target), "--encode-devices", where, "--repeats", "1"]
    assert main([*command, "--dtype", "float32", "--json-out", str(tmp_path / "a.json")]) == 0
    out = capsys.readouterr().out
    assert "8 frames" in out
    assert f"spread, {where}" in out
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["largest_difference"] <= 1e-6 * found["largest_feature"]
    assert found["speedup"]["value"] == pytest.approx(
        found["one_ms"]["median"] / found["spread_ms"]["median"], rel=1e-2
    )


def test_one_group_is_nothing_to_compare(capsys):
    assert main(["bench", "encode", "--encode-devices", f"cpu:{CORES[0]}"]) == 2
    assert "give two groups" in capsys.readouterr().err
