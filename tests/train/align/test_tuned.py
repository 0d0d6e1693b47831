"""A drafter tuned on its target's answers: it begins as it was, learns, and lies in a folder like any other."""

import json
from pathlib import Path

import pytest
import torch

from crossdraft.cli.main import main
from crossdraft.load import load_drafter, target_fingerprint
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft.train.align.tuned import TunedDrafter
from crossdraft.train.capture.store import CaptureStore

SMALL = (
    "rank=4", "optim.steps=30", "optim.decay_steps=0", "optim.warmup_steps=1", "optim.clips=8", "optim.ema=0",
    "optim.checkpoint_every=15", "optim.learning_rate=0.01", "measure.pairs=2", "threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def captured(pair, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("capture") / "store"
    settings = "--clips 2 --prompts 4 --max-new-tokens 12 --workers 0 --device cpu --json"
    assert main(["capture", str(out), "--target", str(pair.target), *settings.split()]) == 0
    return out


def tune(pair, captured, out, *more):
    where = ["--capture", str(captured), "--validation", str(captured), "--target", str(pair.target)]
    return main(["train", "l6", *where, "--event", str(pair.blind), "--out", str(out), "--json", *SMALL, *more])


@pytest.mark.parametrize("rank", ["rank=4", "rank=0"])
def test_what_comes_out_is_a_drafter_that_says_more_of_the_targets_tokens(pair, captured, tmp_path, capsys, rank):
    capsys.readouterr()
    assert tune(pair, captured, tmp_path, rank) == 0
    figures = json.loads(capsys.readouterr().out)
    log = [json.loads(line) for line in (tmp_path / "train.log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    assert steps[-1]["cross_entropy"] < steps[0]["cross_entropy"] / 2
    folder = tmp_path / "drafter"
    assert figures["engine"]["hidden"]["tau"] >= 1
    ids = json.loads((folder / "draft_ids.json").read_text())
    store = CaptureStore.open(captured, target_fingerprint(str(pair.target)))
    assert set(ids) == {token for answer in store.answer_tokens() for token in answer.tolist()}
    assert load_drafter(str(folder), "cpu", "float32").model.vocab_size == 320
    old = EventGPTForConditionalGeneration.from_pretrained(pair.blind).state_dict()
    new = EventGPTForConditionalGeneration.from_pretrained(folder).float().state_dict()
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.allclose(old[name].float(), new[name], atol=2e-2)}
    assert changed
    if rank == "rank=4":
        assert {name.split(".")[-2] for name in changed} <= {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert not any("vision" in name for name in changed)


def test_it_begins_as_it_was(pair):
    model = EventGPTForConditionalGeneration.from_pretrained(pair.blind).double()
    ids = torch.tensor([[5, 40, 60, 80]])
    before = model.model.language_model(ids).last_hidden_state
    tuned = TunedDrafter(model, [40, 41], rank=4, scale=2.0)
    after = tuned.vlm.llama(ids).last_hidden_state
    assert torch.allclose(before.float(), after, atol=1e-4)
    assert len(tuned.layers) == 2 * 4
    assert {weight.shape[0] for weight in tuned.learning.parameters()} == {4, 32}
    tuned.merge()
    assert torch.allclose(tuned.vlm.llama(ids).last_hidden_state, after, atol=1e-5)


def test_losses_of_features_are_refused(pair, captured, tmp_path, capsys):
    assert tune(pair, captured, tmp_path, "loss={mse: 1.0}") == 2
    assert "cannot learn by 'mse'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
