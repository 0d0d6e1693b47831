"""`make gpu` on a machine without a GPU says so and does nothing; elsewhere it leaves one JSON."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.pairs import TINY

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_without_a_device_one_sentence_says_so(tmp_path):
    out = tmp_path / "gpu.json"
    ran = subprocess.run(
        ["make", "--no-print-directory", "gpu", f"PYTHON={sys.executable}", f"ARGS=--json-out={out}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "no CUDA device here; nothing was run\n", "")
    assert not out.exists()


@pytest.mark.slow
def test_on_a_device_one_json_holds_everything(tmp_path):
    """Some of the tests, and tiny shapes, on the CPU."""
    config = tmp_path / "drafter.json"
    config.write_text(json.dumps(TINY))
    out = tmp_path / "gpu.json"
    out.write_text('{"earlier": 1}')
    options = [f"--json-out={out}", "--device=cpu", f"--config={config}", f"--drafter={config}"]
    options += ["--parts=tests,scale"]
    ran = subprocess.run(
        [sys.executable, "tests/gpu/run.py", *options, "-k", "other_ways or planted or name_is"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lab/src'}:{ROOT}"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["tests"]["passed"] == 4
    assert found["tests"]["failed"] == 0
    assert found["tests"]["identity"]["float32"] == {"identical": 10, "answers": 10, "divergences": []}
    assert found["earlier"] == 1
    assert found["scale"]["workload"]["device"] == "cpu"
