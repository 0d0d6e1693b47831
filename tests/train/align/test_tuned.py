"""A drafter tuned on its target's answers: it begins as it was, learns, and lies in a folder like any other."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossdraft.cli.main import main
from crossdraft.drafters.event.load import load_drafter
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.load import target_fingerprint
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft_lab.align.embeddings import load_output_head
from crossdraft_lab.train.align.tuned import (
    PROVENANCE,
    RECIPE,
    TuneInputs,
    TuneRecipe,
    _measured,
    closest_projection,
    saved_figures,
)
from crossdraft_lab.train.align.tuned_drafter import TunedDrafter, write_changed
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.recipe import read_section
from crossdraft_lab.train.core.trainer import Trainer
from crossdraft_lab.train.heads.joint import copy_settings
from tests.train.capture.both import both_captures

SMALL = (
    "rank=4", "optim.steps=30", "optim.decay_steps=0", "optim.warmup_steps=1", "optim.clips=8", "optim.ema=0",
    "optim.checkpoint_every=15", "optim.learning_rate=0.01", "measure.pairs=2", "threads=1",
)  # fmt: skip


def tune(pair, captured, out, *more):
    where = [*both_captures(captured), "--target", str(pair.target)]
    return main(["train", "l6", *where, "--event", str(pair.blind), "--out", str(out), "--json", *SMALL, *more])


def some_inputs(pair, captured, validation: Path, out: Path, *more: str) -> TuneInputs:
    recipe = read_section(TuneRecipe, RECIPE, [*SMALL, *more], ("reference", False))
    stores = (CaptureStore.open(folder) for folder in (captured, validation))
    return TuneInputs(recipe, str(pair.target), str(pair.blind), *stores, out)


def accepted_on_learned(pair, captured, folder: Path) -> float:
    """Tokens of the pass that a hidden draft of the drafter rides along with, on clips that were learned from."""
    found: Any = _measured(some_inputs(pair, captured, captured, folder, "measure.pairs=4"), folder)
    return found["hidden"]["tau"]


@pytest.mark.parametrize(
    ("rank", "base"),
    [
        ("rank=4", "float32"),
        pytest.param("rank=4", "bfloat16", marks=pytest.mark.slow),  # a minute each
        pytest.param("rank=4", "int4", marks=pytest.mark.slow),
        pytest.param("rank=0", "float32", marks=pytest.mark.slow),
    ],
)
def test_what_comes_out_is_a_drafter_that_says_more_of_the_targets_tokens(pair, captured, tmp_path, capsys, rank, base):
    capsys.readouterr()
    assert tune(pair, captured, tmp_path, rank, f"base={base}") == 0
    figures = json.loads(capsys.readouterr().out)
    log = [json.loads(line) for line in (tmp_path / "train.log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    assert steps[-1]["cross_entropy"] < steps[0]["cross_entropy"] / 2
    folder = tmp_path / "drafter"
    assert set(figures["engine"]) == {"hidden", "rounds"}
    assert accepted_on_learned(pair, captured, folder) > accepted_on_learned(pair, captured, pair.blind)
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
    assert torch.equal(before, tuned.vlm.llama(ids).last_hidden_state)
    assert len(tuned.additions) == 2 * 4
    assert {weight.shape[0] for weight in tuned.learning.parameters()} == {4, 32}


def test_what_is_merged_computes_what_was_trained(pair, tmp_path):
    model = EventGPTForConditionalGeneration.from_pretrained(pair.blind)
    tuned = TunedDrafter(model, [40, 41], rank=4, scale=2.0)
    for layer in tuned.additions.values():
        torch.nn.init.normal_(layer.up, std=0.02)
    ids = torch.tensor([[5, 40, 60, 80]])
    learned = tuned.vlm.llama(ids).last_hidden_state
    (tmp_path / "merged").mkdir()
    write_changed(pair.blind, tmp_path / "merged", tuned.names, tuned.changed)
    copy_settings(pair.blind, tmp_path / "merged")
    merged = EventGPTForConditionalGeneration.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    plain = EventGPTForConditionalGeneration.from_pretrained(pair.blind)
    found = merged.model.language_model(ids).last_hidden_state
    assert torch.allclose(found, learned, atol=0.05)  # rounded to bfloat16
    assert not torch.allclose(plain.model.language_model(ids).last_hidden_state, learned, atol=0.2)
    with pytest.raises(CrossdraftError, match=r"has no weight 'model\.other\.weight'"):
        write_changed(pair.blind, tmp_path / "merged", {"model.other.weight"}, tuned.changed)


def losses(folder: Path) -> list[float]:
    """Of every step."""
    log = map(json.loads, (folder / "train.log.jsonl").read_text().splitlines())
    return [entry["loss"] for entry in log if "norm" in entry]


def test_a_run_may_go_on_with_steps_cut_otherwise_and_is_not_done_twice(pair, captured, tmp_path, capsys, monkeypatch):
    quick = ("optim.steps=6", "optim.checkpoint_every=3", "optim.bf16=false", "measure.pairs=0")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert tune(pair, captured, whole, *quick) == 0

    def once(self: Trainer) -> None:
        save(self)
        raise CrossdraftError("The light went out.")

    save = Trainer.save
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", once)
        assert tune(pair, captured, broken, *quick) == 2
    assert tune(pair, captured, broken, *quick, "optim.accumulate=2") == 0  # as after an out-of-memory
    assert losses(broken) == pytest.approx(losses(whole), abs=2e-4)
    assert len(losses(broken)) == 6

    inputs = [some_inputs(pair, captured, back, whole, *quick) for back in (captured.with_name("validation"), captured)]
    assert [saved_figures(one) is None for one in inputs] == [False, True]  # the other has other validation clips
    saved, first = (whole / "drafter" / "model.safetensors").stat().st_mtime_ns, (whole / "drafter" / PROVENANCE)
    now = first.read_text()
    record = json.loads(now)
    del record["data"]["validation"]  # as an earlier version wrote it
    record["data"]["optim"]["parallel"] = "ddp"
    first.write_text(json.dumps(record))
    assert all(saved_figures(one) is not None for one in inputs)
    first.write_text(now)
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("crossdraft_lab.train.align.tuned.load_tuned", once)  # nothing is left to learn
        assert tune(pair, captured, whole, *quick) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == json.loads(first.read_text())["figures"]["steps"] == 6
    assert (whole / "drafter" / "model.safetensors").stat().st_mtime_ns == saved


def test_more_parts_than_a_step_has_clips_are_refused(pair, captured, tmp_path, capsys):
    """Of eight answers, four about each clip: a step has two clips."""
    assert tune(pair, captured, tmp_path, "optim.accumulate=4") == 2
    error = capsys.readouterr().err
    assert "2 clips with 4 each, which cannot be shared out among 4 passes of 1 processes" in error
    assert "; lower optim.accumulate to 2." in error
    assert not list(tmp_path.iterdir())


def test_validation_clips_that_are_learned_from_are_refused(pair, captured, tmp_path, capsys):
    where = ["--capture", str(captured), "--validation", str(captured), "--target", str(pair.target)]
    assert main(["train", "l6", *where, "--event", str(pair.blind), "--out", str(tmp_path), *SMALL]) == 2
    assert "is named for training and validation; give another" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_losses_of_features_are_refused(pair, captured, tmp_path, capsys):
    assert tune(pair, captured, tmp_path, "loss={mse: 1.0}") == 2
    assert "cannot learn by 'mse'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # a minute each
@pytest.mark.parametrize("rank", ["rank=4", "rank=0"])
def test_with_the_targets_head_its_features_learn_to_be_the_targets(pair, captured, tmp_path, capsys, rank):
    """That head is frozen, and the finished drafter's own."""
    capsys.readouterr()
    losses = "loss={mse: 1.0, cosine: 0.5, cross_entropy: 0.1}"
    assert tune(pair, captured, tmp_path, rank, "head=target", losses) == 0
    folder = tmp_path / "drafter"
    assert accepted_on_learned(pair, captured, folder) > accepted_on_learned(pair, captured, pair.blind)
    log = [json.loads(line) for line in (tmp_path / "train.log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    for name in ("mse", "cross_entropy"):
        assert steps[-1][name] < 0.8 * steps[0][name]
    head = load_file(tmp_path / "drafter" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(head, load_output_head(str(pair.target), "cpu", "float32").weight.bfloat16())
    assert not torch.equal(head, load_file(pair.blind / "model.safetensors")["lm_head.weight"].bfloat16())


@torch.no_grad()
def test_logits_by_the_targets_head_are_those_of_the_merged_drafter(pair, tmp_path):
    model = EventGPTForConditionalGeneration.from_pretrained(pair.blind)
    rows = load_output_head(str(pair.target), "cpu", "float32").weight
    tuned = TunedDrafter(model, [40, 41, 77], rank=4, scale=2.0, head=rows)
    ids = torch.tensor([[5, 40, 60, 80]])
    batch = TrainBatch(ids, {2: tuned.vlm.llama(ids).last_hidden_state}, torch.tensor([1]), torch.tensor([4]))
    (learned,) = tuned.predict(batch)
    assert torch.equal(learned.features, batch.hidden[2])
    (tmp_path / "merged").mkdir()
    write_changed(pair.blind, tmp_path / "merged", tuned.names, tuned.changed)
    copy_settings(pair.blind, tmp_path / "merged")
    merged = EventGPTForConditionalGeneration.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    found = merged.lm_head(merged.model.language_model(ids).last_hidden_state)[..., [40, 41, 77]]
    assert torch.allclose(found, learned.logits, atol=0.05)  # rounded to bfloat16


def test_a_head_with_more_rows_than_the_targets_keeps_the_rest(pair):
    model, generator = EventGPTForConditionalGeneration.from_pretrained(pair.blind), torch.Generator().manual_seed(0)
    tuned = TunedDrafter(model, [40], rank=4, scale=2.0, head=torch.randn(300, 32, generator=generator))
    weight = model.lm_head.weight
    merged = tuned.changed("lm_head.weight", weight)
    assert merged.shape == weight.shape
    assert torch.equal(merged[:300], tuned.head)
    assert torch.equal(merged[300:], weight[300:].bfloat16())


@pytest.mark.parametrize("name", ["lm_head.weight", "model.language_model.embed_tokens.weight"])
def test_a_projection_begins_where_the_targets_head_says_nearly_what_its_own_said(tmp_path, name):
    """Also where the drafter's head is its embeddings; and the target's may have fewer rows."""
    generator = torch.Generator().manual_seed(0)
    head, true = torch.randn(40, 12, generator=generator), torch.randn(12, 5, generator=generator)
    own = torch.cat((head @ true, torch.randn(8, 5, generator=generator)))  # 8 ids that the target does not have
    save_file({name: own}, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.allclose(closest_projection(head, tmp_path), true, atol=1e-5)
    assert closest_projection(torch.randn(40, 5, generator=generator), tmp_path) is None, "equally wide"


@torch.no_grad()
def test_a_narrower_drafter_speaks_by_the_targets_head_through_a_projection(pair, tmp_path):
    """What it says is what the merged drafter says, whose head is their product."""
    model, generator = EventGPTForConditionalGeneration.from_pretrained(pair.blind), torch.Generator().manual_seed(0)
    head = torch.randn(len(model.lm_head.weight), 48, generator=generator)
    projection = torch.randn(48, 32, generator=generator) / 8
    tuned = TunedDrafter(model, [40, 41, 77], rank=4, scale=2.0, head=head, projection=projection)
    assert any(tuned.projection is weight for weight in tuned.learning.parameters())
    ids = torch.tensor([[5, 40, 60, 80]])
    batch = TrainBatch(ids, {2: tuned.vlm.llama(ids).last_hidden_state}, torch.tensor([1]), torch.tensor([4]))
    (learned,) = tuned.predict(batch)
    assert torch.allclose(learned.features, batch.hidden[2] @ projection.T)
    (tmp_path / "merged").mkdir()
    tuned.write(pair.blind, tmp_path / "merged")
    copy_settings(pair.blind, tmp_path / "merged")
    merged = EventGPTForConditionalGeneration.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    found = merged.lm_head(merged.model.language_model(ids).last_hidden_state)[..., [40, 41, 77]]
    assert torch.allclose(found, learned.logits, atol=0.1)  # rounded to bfloat16


@pytest.mark.slow  # a minute each
@pytest.mark.parametrize(("rank", "stored"), [("rank=4", False), ("rank=4", True), ("rank=0", False)])
def test_a_drafter_whose_head_was_its_embeddings_gets_a_head_of_its_own(pair, captured, tmp_path, rank, stored):
    """What it drafts is what it learned to: the embeddings stay, the target's head stands beside them.

    Some files hold the head although it is the embeddings (`stored`).
    """
    tied = tmp_path / "tied"
    shutil.copytree(pair.blind, tied)
    config = json.loads((tied / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = config["tie_word_embeddings"] = True
    (tied / "config.json").write_text(json.dumps(config))
    weights = load_file(tied / "model.safetensors")
    if stored:
        weights["lm_head.weight"] = weights["model.language_model.embed_tokens.weight"].clone()
    else:
        del weights["lm_head.weight"]
    save_file(weights, tied / "model.safetensors", {"format": "pt"})
    out = tmp_path / "out"
    where = ["--capture", str(captured), "--target", str(pair.target), "--event", str(tied), "--out", str(out)]
    assert main(["train", "l6", *where, *SMALL, rank, "head=target", "loss={mse: 1.0, cross_entropy: 0.5}"]) == 0
    folder = out / "drafter"
    written = load_file(folder / "model.safetensors")
    assert torch.equal(
        written["lm_head.weight"], load_output_head(str(pair.target), "cpu", "float32").weight.bfloat16()
    )
    assert not torch.equal(written["lm_head.weight"], written["model.language_model.embed_tokens.weight"])
    model = EventGPTForConditionalGeneration.from_pretrained(folder)
    assert torch.equal(model.lm_head.weight.bfloat16(), written["lm_head.weight"])
    assert accepted_on_learned(pair, captured, folder) > accepted_on_learned(pair, captured, pair.blind)


def test_a_frozen_base_needs_additions(pair, captured, tmp_path, capsys):
    assert tune(pair, captured, tmp_path, "rank=0", "base=int4") == 2
    assert "which base=int4 would freeze" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_weight_that_is_no_number_is_named(pair, captured, tmp_path, capsys):
    broken = tmp_path / "event"
    shutil.copytree(pair.blind, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.language_model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    where = ["--capture", str(captured), "--target", str(pair.target), "--event", str(broken)]
    assert main(["train", "l6", *where, "--out", str(tmp_path / "out"), *SMALL]) == 2
    assert "The weight model.language_model.layers.1.mlp.up_proj.weight of the drafter" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
