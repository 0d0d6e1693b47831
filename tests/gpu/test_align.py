"""A pair is aligned and measured where the target is."""

import json

import pytest

from crossdraft_lab.bench.align_rows import HELD_OUT, IDENTITY, TRAINED, UNTRAINED
from tests.gpu.pairs import DEVICE


def test_without_a_device_all_of_it_runs_on_the_gpu(pair, tmp_path, capsys):
    """Answers, tuning, drafts, and figures along the answers, which compare features of both models."""
    pytest.importorskip("pydantic")
    pytest.importorskip("typer")
    from crossdraft.cli.main import main

    sizes = "--clips 2 --validation-clips 1 --test-clips 1 --prompts 2 --max-new-tokens 8 --workers 0 --json"
    small = "rank=4 optim.steps=4 optim.warmup_steps=1 optim.decay_steps=0 optim.checkpoint_every=2 optim.clips=2"
    where = [str(pair.target), str(pair.event), "scenes", str(tmp_path / "out")]
    assert main(["align", *where, *sizes.split(), *small.split()]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    for wordings in (HELD_OUT, TRAINED):
        assert rows[IDENTITY][wordings]["features"]["cosine"]["value"] == pytest.approx(1, abs=1e-3)
        assert rows[UNTRAINED][wordings]["features"]["cosine"]["value"] < 0.999
    owner = json.loads((tmp_path / "out" / "captures" / "train" / "index.json").read_text())["owner"]
    assert owner["dtype"] == ("float32" if DEVICE.type == "cpu" else "bfloat16")
