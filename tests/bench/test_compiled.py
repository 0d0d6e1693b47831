"""What `bench compiled` says, by hand, and the whole of it on a tiny shape."""

import json

import pytest

from crossdraft.cli.main import main
from crossdraft.load import load_target
from crossdraft_lab.bench.compiled import ComparedPass, CompiledResult
from crossdraft_lab.bench.scale_measure import Bound
from crossdraft_lab.bench.scale_models import decode_bytes
from crossdraft_lab.bench.statistics import Quartiles, median_ratio
from tests.gpu.pairs import TINY


def compared(n, lean, compiled, *, same=True):
    over = median_ratio([compiled] * 3, [lean] * 3)
    return ComparedPass(n, Quartiles(lean, lean, lean), Quartiles(compiled, compiled, compiled), over, 2.0, same)


def test_ratios_by_hand():
    bound = Bound(8, 2, 1000.0, 0.01, 0.5)
    passes = [compared(1, 0.020, 0.010), compared(16, 0.030, 0.011, same=False)]
    found = CompiledResult("7b", "cuda:0", "bfloat16", passes, bound, bound)
    assert [one["ratio"]["value"] for one in found.to_json()["passes"]] == [0.5, 0.366667]
    assert found.to_json()["over_v1"] == {1: 1.0, 16: 1.1}
    lines = found.lines()
    assert lines[2] == (
        "V(16)  lean 30.000 ms, compiled 11.000 ms (0.37 [0.37, 0.37; n=3 runs]), V(16)/V(1) 1.10, "
        "compiled in 2.0 s, NOT the same tokens"
    )
    assert lines[-1] == "share of the bandwidth bound 50% lean, 50% compiled"


@pytest.mark.slow
def test_the_command_on_a_tiny_shape(tmp_path):
    config, out = tmp_path / "tiny.json", tmp_path / "out.json"
    config.write_text(json.dumps(TINY))
    command = ["bench", "compiled", "--config", str(config), "--device", "cpu", "--repeats", "3"]
    assert main([*command, "--json-out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [one["n"] for one in found["passes"]] == [1, 8, 16, 32]
    assert all(one["same_tokens"] for one in found["passes"])


def test_no_repeats_are_refused(capsys):
    assert main(["bench", "compiled", "--repeats", "0"]) == 2
    assert "--repeats is 0; run each pass at least once." in capsys.readouterr().err


def test_packed_layers_are_read_like_plain_ones(pair):
    plain, packed = (load_target(str(pair.target), "cpu", packed=kind).model for kind in (False, True))
    assert decode_bytes(packed) == decode_bytes(plain) > 0
