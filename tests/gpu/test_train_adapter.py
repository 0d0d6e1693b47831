"""An adapter is trained where its target is, and learns there what it learns on the CPU."""

import json

import pytest

from tests.support import encodes_clips

OPTIM = "optim.steps=3 optim.warmup_steps=1 optim.decay_steps=0 optim.checkpoint_every=3 optim.clips=2 optim.bf16=false"


@pytest.mark.parametrize("network", ["l4", pytest.param("l4v", marks=encodes_clips), "l5"])
def test_losses_are_those_of_the_cpu(network, pair, tmp_path, capsys):
    pytest.importorskip("pydantic")
    pytest.importorskip("typer")
    from crossdraft.cli.main import main

    capture = str(tmp_path / "capture")
    sizes = "--clips 2 --prompts 2 --max-new-tokens 8 --workers 0 --dtype float32"
    assert main(["capture", capture, "--target", str(pair.target), *sizes.split()]) == 0
    losses = {}
    for device in (None, "cpu"):
        out = tmp_path / str(device)
        where = ["--target", str(pair.target), "--event", str(pair.event), "--capture", capture, "--out", str(out)]
        chosen = [] if device is None else ["--device", device]
        assert main(["train", network, *where, *chosen, *OPTIM.split(), "measure.pairs=0", "config.heads=2"]) == 0
        lines = map(json.loads, (out / "train.log.jsonl").read_text().splitlines())
        losses[device] = [line["loss"] for line in lines if "loss" in line]
    capsys.readouterr()
    assert len(losses[None]) == 3
    assert losses[None] == pytest.approx(losses["cpu"], rel=2e-2)
