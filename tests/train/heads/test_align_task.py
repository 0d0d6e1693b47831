"""Adapters trained from a capture, to the end: they learn, draft under the engine, and lie in a folder of their own."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import one_hot

from crossdraft.cli.main import main
from crossdraft.drafters.event.load import load_drafter
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import read_config
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft_lab.networks import task_of
from crossdraft_lab.objective import Objective
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import MicroBatch, MicroLoss, merge_losses, micro_weight
from crossdraft_lab.train.heads.align_task import TargetHead, alignment_loss
from crossdraft_lab.train.heads.clip_answers import paired_answers
from crossdraft_lab.train.heads.recipe import load_head_recipe
from crossdraft_lab.train.heads.run import TASKS
from crossdraft_lab.train.heads.task import check_of
from tests.train.capture.both import both_captures

SMALL = (
    "optim.steps=30", "optim.decay_steps=0", "optim.warmup_steps=1", "optim.clips=8", "optim.ema=0", "optim.bf16=false",
    "optim.checkpoint_every=15", "optim.learning_rate=0.01", "measure.pairs=2", "threads=1",
)  # fmt: skip


def test_the_accepted_prefix_is_a_mean_over_answers_however_long_they_are():
    """One answer of eight tokens, all of them right, and three of two tokens, all wrong: (8 + 3 · 0) / 4 tokens.

    Weighted by the tokens that batches have, it would be 8 · 8 / (8 + 6).
    """

    def batch_of(step: int) -> tuple[TrainBatch, torch.Tensor]:
        rows, length = ((1, 9), (3, 3))[step]
        tokens = torch.arange(length).expand(rows, -1)
        features = one_hot(tokens + 1, 10).float()  # of the token after it
        said = one_hot(tokens + 1 if step == 0 else tokens, 10).float()
        starts, lengths = torch.full((rows,), 1), torch.full((rows,), length)
        return TrainBatch(tokens, {1: said}, starts, lengths), features

    def predict(batch: TrainBatch) -> list[DraftLogits]:
        return [DraftLogits(0, batch.hidden[1])]

    shared = TargetHead(torch.eye(10), torch.arange(10), 10)
    loss_of = alignment_loss(predict, batch_of, Objective({"cross_entropy": 1.0}), shared)
    assert check_of(loss_of, batches=2)(0)["prefix"] == pytest.approx(2.0)
    found = [loss_of(step, MicroBatch()) for step in range(2)]
    shares = [MicroLoss(float(loss), micro_weight(MicroBatch(0, 2), figures), figures) for loss, figures in found]
    assert merge_losses(shares)[1]["prefix"] == pytest.approx(2.0)  # of a step in two pieces, for the log


CONTRASTIVE = "loss={mse: 1.0, cross_entropy: 1.0, contrastive: 0.1}"


@pytest.mark.parametrize(
    ("recipe", "more"), [("l4v", ()), ("l4v", (CONTRASTIVE,)), ("l5fr", ()), ("b1", ()), ("token", ())]
)
def test_an_adapter_learns_and_drafts(pair, captured, tmp_path, capsys, recipe, more):
    capsys.readouterr()
    where = [*both_captures(captured), "--target", str(pair.target)]
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
    hidden = figures["engine"]["hidden"]
    assert hidden["tau"] >= 1 + sum(hidden["per_position"]) - 0.01  # the bonus, and what was accepted before it
    found = read_config(tmp_path / "head")
    assert found.network == recipe.removesuffix("r")
    if recipe == "l4v":
        assert (found.config.visual_size, found.config.frames) == (32, 3)
        assert list(captured.glob("features/frames-*.safetensors"))  # for other trainings on it


@pytest.mark.parametrize(
    ("network", "where"),
    [("l4", "cuda"), ("l5fr", "cuda"), ("eagle3", "cuda"), ("token", "cpu"), ("token_projection", "cpu"),
     ("event_medusa", "cpu"), ("vision_linear", "cpu")],
)  # fmt: skip
def test_without_a_device_it_is_trained_where_it_can_be(monkeypatch, network, where):
    """What reads what the drafter itself says, and what is small, stays on the CPU of a machine with a GPU."""
    recipe = load_head_recipe(network)
    kind = TASKS[task_of(recipe.network)]
    assert kind.default_device(recipe) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert kind.default_device(recipe) == where


def test_an_answer_beyond_the_drafters_vocabulary_is_refused(pair, captured):
    """As only a target that was never trained gives one: it has more rows than its tokenizer has tokens."""
    drafter = load_drafter(str(pair.event), "cpu", packed=False).model
    drafter.model.resize_token_embeddings(5)
    store = CaptureStore.open(captured)
    with pytest.raises(CrossdraftError, match=r"has the token \d+, and the drafter .* knows tokens 0 to 4"):
        paired_answers(store, drafter, str(pair.event), 0, 4)


@pytest.mark.parametrize("recipe", ["eagle", "l4", "vision_linear"])
def test_a_capture_with_a_feature_that_is_no_number_is_refused_before_the_first_step(
    pair, captured, tmp_path, capsys, recipe
):
    broken, out = tmp_path / "broken", tmp_path / "out"
    shutil.copytree(captured, broken)
    shard = next(broken.glob("*.safetensors"))
    tensors = load_file(shard)
    tensors["hidden.2"][-1, 3] = float("inf")  # of the last of eight answers
    save_file(tensors, shard)
    where = ["--capture", str(broken), "--target", str(pair.target), "--event", str(pair.event), "--out", str(out)]
    assert main(["train", recipe, *where, "--device", "cpu", "optim.bf16=false", "optim.steps=1"]) == 2
    said = capsys.readouterr().err
    assert f"Answer 7 of the capture {broken} has a feature that is not finite (NaN or infinity)" in said
    assert not out.exists()


@pytest.mark.parametrize("recipe", ["l4", "event_medusa", "vision_linear"])
def test_an_event_model_with_a_weight_that_is_no_number_is_refused_before_the_first_step(
    pair, captured, tmp_path, capsys, recipe
):
    broken, out = tmp_path / "event", tmp_path / "out"
    shutil.copytree(pair.event, broken)
    tensors = load_file(broken / "model.safetensors")
    name = next(name for name in tensors if "vision_tower" in name)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    where = ["--capture", str(captured), "--target", str(pair.target), "--event", str(broken), "--out", str(out)]
    assert main(["train", recipe, *where, "--device", "cpu", "optim.bf16=false", "optim.steps=1"]) == 2
    assert f"of the drafter {broken} is not finite (NaN or infinity)" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("recipe", "more", "loss"),
    [
        ("token_projection", ("loss={mse: 1.0, cosine: 0.5, cross_entropy: 1.0}",), "cross_entropy"),
        ("logit_alignment", ("config.top=50", "config.width=32"), "distillation"),
    ],
)
def test_the_drafters_own_answer_is_learned_from_index_by_index(pair, captured, tmp_path, capsys, recipe, more, loss):
    """The loss falls, the log has the accepted prefix, and it drafts under the engine."""
    capsys.readouterr()
    where = [*both_captures(captured), "--target", str(pair.target)]
    line = ["train", recipe, *where, "--event", str(pair.event), "--out", str(tmp_path), "--json", *SMALL]
    assert main([*line, "optim.learning_rate=0.1", *more]) == 0
    hidden = json.loads(capsys.readouterr().out)["engine"]["hidden"]
    assert hidden["tau"] - 1 >= sum(hidden["per_position"]) - 0.01 > 0  # of what was accepted, to the eighth position
    log = [json.loads(entry) for entry in (tmp_path / "train.log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    assert steps[-1][loss] < 0.8 * steps[0][loss]
    assert "prefix" in steps[-1]


def test_a_layer_that_the_drafter_lacks_is_refused(pair, captured, tmp_path, capsys):
    """`event_video_eagle3` reads layers of a drafter of 32."""
    where = ["--capture", str(captured), "--target", str(pair.target), "--event", str(pair.event)]
    assert main(["train", "event_video_eagle3", *where, "--out", str(tmp_path / "out"), *SMALL]) == 2
    said = capsys.readouterr().err
    assert "cannot read layer 8 of this drafter, whose 2 layers have hidden states 0 to 2" in said
    assert "config.source_layers, for example to 0,1,2" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", ["token_projection", "logit_alignment"])
def test_an_adapter_on_the_drafters_own_answer_reads_its_last_layer(pair, captured, tmp_path, capsys, recipe):
    where = ["--capture", str(captured), "--target", str(pair.target), "--event", str(pair.event)]
    for layers in ("[1]", "[0, 2]"):
        more = ["--out", str(tmp_path / "out"), *SMALL, f"config.source_layers={layers}"]
        assert main(["train", recipe, *where, *more]) == 2
        assert f"The adapter '{recipe}' reads what the drafter's own tokens came from" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


NAMED = {"event_to_video_eagle": "l5f", "event_video_eagle3": "l4", "eagle_fusion": "l5", "sequence_distillation": "l4"}


@pytest.mark.parametrize("recipe", NAMED)
def test_adapters_of_other_names_are_settings_of_ours(recipe):
    """And differ from those recipes in more than their name."""
    found, ours = load_head_recipe(recipe), load_head_recipe(NAMED[recipe])
    assert found.network == ours.network
    assert (found.loss, found.config) != (ours.loss, ours.config)
