"""Adapters trained from a capture, to the end: they learn, draft under the engine, and lie in a folder of their own."""

import json
from pathlib import Path

import pytest

from crossdraft.cli.main import main
from crossdraft.heads.files import read_config

SMALL = (
    "optim.steps=30", "optim.decay_steps=0", "optim.warmup_steps=1", "optim.clips=8", "optim.ema=0", "optim.bf16=false",
    "optim.checkpoint_every=15", "optim.learning_rate=0.01", "measure.pairs=2", "threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def captured(pair, tmp_path_factory) -> Path:
    """A capture to learn from; beside it stands one of validation scenes."""
    out = tmp_path_factory.mktemp("capture") / "store"
    settings = "--clips 2 --prompts 4 --max-new-tokens 12 --workers 0 --device cpu --json"
    for folder, split in ((out, "train"), (out.with_name("validation"), "validation")):
        line = ["capture", str(folder), "--split", split, "--target", str(pair.target), *settings.split()]
        assert main(line) == 0
    return out


CONTRASTIVE = "loss={mse: 1.0, cross_entropy: 1.0, contrastive: 0.1}"


@pytest.mark.parametrize(
    ("recipe", "more"), [("l4v", ()), ("l4v", (CONTRASTIVE,)), ("l5fr", ()), ("b1", ()), ("token", ())]
)
def test_an_adapter_learns_and_drafts(pair, captured, tmp_path, capsys, recipe, more):
    capsys.readouterr()
    where = [
        "--capture",
        str(captured),
        "--validation",
        str(captured.with_name("validation")),
        "--target",
        str(pair.target),
    ]
    line = ["train", recipe, *where, "--event", str(pair.event), "--out", str(tmp_path), "--json", *SMALL, *more]
    assert main(line) == 0
    figures = json.loads(capsys.readouterr().out)
    log = [json.loads(entry) for entry in (tmp_path / "train.log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    assert steps[-1]["cross_entropy"] < steps[0]["cross_entropy"] / 2
    assert ("contrastive" in steps[-1]) == bool(more)
    assert ("prefix" in steps[-1]) == (
        recipe in {"l4v", "token"}
    )  # what reads the target's features has no such figure
    assert figures["engine"]["hidden"]["tau"] >= 1
    found = read_config(tmp_path / "head")
    assert found.network == recipe.removesuffix("r")
    if recipe == "l4v":
        assert (found.config.visual_size, found.config.frames) == (32, 3)
        assert list(tmp_path.glob("frames-*.safetensors"))
