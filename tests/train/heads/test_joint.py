"""Medusa-2: target and heads learn together; the target is another one afterwards, and says so by its hash."""

import json

import pytest
import torch

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.heads.files import config_of, load_head, make
from crossdraft.heads.networks.base import SharedWeights
from crossdraft_lab.objective import Objective
from crossdraft_lab.train.capture.check import full_pass
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.joint import JointModel, add_low_rank, low_rank_of, save_joint
from tests.engine.zoo import VIDEO, VOCABULARY, ZOO, as_target

OBJECTIVE = Objective({"cross_entropy": 1.0}, 0.8)


def head_for(model, network="medusa", **more):
    text = model.config.get_text_config()
    values = {
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "num_layers": text.num_hidden_layers,
        "draft_ids": list(range(VOCABULARY)),
        "steps": 2,
    }
    torch.manual_seed(0)
    return make(network, config_of(network, values | more, "here"), SharedWeights.of(model)).double()


@pytest.fixture(scope="module")
def prompt_answers():
    """What the target says of its own accord."""
    model, prompt = ZOO["video_llava"]()
    target = as_target(model, prompt)
    answers = DecodeLoop(target).generate([Request("x", max_new_tokens=8), Request("xxx", max_new_tokens=8)])
    return [
        (target.prepare(request), answer.tokens)
        for request, answer in zip((Request("x"), Request("xxx")), answers, strict=True)
    ]


@pytest.fixture
def joint():
    model, _ = ZOO["video_llava"]()
    return JointModel(model, head_for(model), OBJECTIVE, frozenset({VIDEO}), rank=4)


def test_nothing_is_added_at_first_and_only_additions_and_heads_learn(joint, prompt_answers):
    untouched, _ = ZOO["video_llava"]()
    prompt, answer = prompt_answers[0]
    ids = torch.cat((prompt.input_ids, torch.tensor(answer)))[None]
    pixels = {"pixel_values_videos": prompt.features["pixel_values_videos"].double()}
    own = joint.model(input_ids=ids, **pixels).logits
    assert torch.allclose(own, untouched(input_ids=ids, **pixels).logits, atol=1e-9)
    learning = {name for name, weight in joint.named_parameters() if weight.requires_grad}
    assert {name for name in learning if name.startswith("model.")} == {
        name for name, _ in joint.named_parameters() if name.endswith((".up", ".down"))
    }
    assert sum(name.endswith(".up") for name in learning) == 4 * 3  # q, k, v, o of three layers: not the tower's
    assert any(name.startswith("head.") for name in learning)


def test_gradients_of_both_losses_reach_the_target(joint, prompt_answers):
    joint.heads_weight = 1e6  # so that what reaches the target comes of the heads
    loss, figures = joint.loss(*prompt_answers[0])
    loss.backward()
    assert loss.item() == pytest.approx(figures["own"] + 1e6 * figures["heads"], rel=1e-6)
    ups = [weight.grad for name, weight in joint.named_parameters() if name.endswith(".up")]
    assert max(float(grad.abs().max()) for grad in ups) > 10


def test_without_the_additions_the_target_computes_what_it_did(joint, prompt_answers):
    prompt, answer = prompt_answers[0]
    with torch.no_grad():
        untouched = full_pass(joint.model, prompt, answer)[0].logits
        for layer in joint.layers:
            torch.nn.init.normal_(low_rank_of(layer).up)
        moved = full_pass(joint.model, prompt, answer)[0].logits
        with joint.without_additions():
            before = full_pass(joint.model, prompt, answer)[0].logits
        again = full_pass(joint.model, prompt, answer)[0].logits
    assert torch.equal(before, untouched)
    assert not torch.allclose(moved, untouched, atol=0.1)
    assert torch.equal(again, moved)


def test_micro_batches_add_up_to_the_loss_of_the_step(joint, prompt_answers):
    uneven = [
        prompt_answers[0],
        (prompt_answers[1][0], prompt_answers[1][1][:3]),
        prompt_answers[1],
        (prompt_answers[0][0], prompt_answers[0][1][:2]),
    ]
    loss_of = joint.loss_of(lambda step: uneven)
    whole, figures = loss_of(0, MicroBatch())
    parts = [loss_of(0, MicroBatch(i, 2)) for i in range(2)]
    positions = [found["places"] for _, found in parts]
    assert figures["places"] == sum(positions) == 7 + 2 + 7 + 1
    mean = sum(float(loss.detach()) * n for (loss, _), n in zip(parts, positions, strict=True)) / sum(positions)
    assert mean == pytest.approx(float(whole.detach()), rel=1e-6)


def test_a_checkpoint_holds_what_learns_and_nothing_else(joint):
    names = joint.learning.state_dict().keys()
    assert sum(name.startswith("additions.") for name in names) == 2 * 12
    assert all(name.startswith(("additions.", "head.")) for name in names)
    learning = {id(weight) for weight in joint.learning.parameters() if weight.requires_grad}
    assert learning == {id(weight) for weight in joint.parameters() if weight.requires_grad}


def test_additions_to_a_bfloat16_target_are_float32():
    model, _ = ZOO["video_llava"]()
    for layer in add_low_rank(model.bfloat16(), 4):
        assert layer.weight.dtype is torch.bfloat16
        assert low_rank_of(layer).up.dtype is low_rank_of(layer).down.dtype is torch.float32


def test_training_changes_the_target_and_its_fingerprint(joint, prompt_answers, tmp_path):
    loss_of = joint.loss_of(lambda step: prompt_answers)
    learning = [weight for weight in joint.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(learning, 0.02)
    losses, taus = [], []
    for step in range(6):
        optimiser.zero_grad()
        loss, figures = loss_of(step, MicroBatch())
        taus.append(figures["tau"])
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert taus[-1] > taus[0]
    prompt, answer = prompt_answers[0]
    before = full_pass(joint.model, prompt, answer)[0].logits
    source = tmp_path / "source"
    source.mkdir()
    (source / "words.json").write_text("{}")
    old = ("old.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "README.md", "provenance.json")
    for name in old:
        (source / name).write_text("of the old target")
    (tmp_path / "out").mkdir()
    save_joint(tmp_path / "out", joint, "medusa", source)
    assert not {path.name for path in (tmp_path / "out" / "target").iterdir()} & set(old)
    found = type(joint.model).from_pretrained(tmp_path / "out" / "target", dtype=torch.double).eval()
    joint.model = found
    assert torch.allclose(full_pass(joint.model, prompt, answer)[0].logits, before, atol=1e-6)
    named = json.loads((tmp_path / "out" / "head" / "config.json").read_text())["target"]
    assert named == fingerprint(tmp_path / "out" / "target")
    assert (tmp_path / "out" / "target" / "words.json").exists()
    load_head(tmp_path / "out" / "head", SharedWeights.of(found), named)
    untouched, _ = ZOO["video_llava"]()
    moved = {
        name for name, weight in found.state_dict().items() if not torch.equal(weight, untouched.state_dict()[name])
    }
    assert len(moved) == 12
    assert all(name.rpartition(".")[0].endswith(("q_proj", "k_proj", "v_proj", "o_proj")) for name in moved)


def test_a_head_that_reads_more_of_the_target_is_refused():
    model, _ = ZOO["video_llava"]()
    sizes = {"heads": 2, "kv_heads": 2, "head_dim": 8, "intermediate_size": 16}
    with pytest.raises(CrossdraftError, match="Eagle3 does not; take Medusa"):
        JointModel(model, head_for(model, "eagle3", **sizes), OBJECTIVE, frozenset({VIDEO}))
