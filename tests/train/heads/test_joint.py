"""Medusa-2: target and heads learn together; the target is another one afterwards, and says so by its hash."""

import json

import pytest
import torch

from crossdraft.engine.decode import Decoder
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.fingerprint import fingerprint
from crossdraft.models.heads.base import TargetTables
from crossdraft.models.heads.files import config_of, load_head, make
from crossdraft.models.heads.objective import Objective
from crossdraft.train.heads.joint import Joint, save_joint
from crossdraft.train.share import Share
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
    return make(network, config_of(network, values | more, "here"), TargetTables.of(model)).double()


@pytest.fixture(scope="module")
def asked():
    """What the target says of its own accord."""
    model, prompt = ZOO["video_llava"]()
    target = as_target(model, prompt)
    answers = Decoder(target).generate([Request("x", max_new_tokens=8), Request("xxx", max_new_tokens=8)])
    return [
        (target.prepare(request), answer.tokens)
        for request, answer in zip((Request("x"), Request("xxx")), answers, strict=True)
    ]


@pytest.fixture
def joint():
    model, _ = ZOO["video_llava"]()
    return Joint(model, head_for(model), OBJECTIVE, frozenset({VIDEO}), rank=4)


def test_nothing_is_added_at_first_and_only_additions_and_heads_learn(joint, asked):
    untouched, _ = ZOO["video_llava"]()
    prompt, answer = asked[0]
    ids = torch.cat((prompt.input_ids, torch.tensor(answer)))[None]
    pixels = {"pixel_values_videos": prompt.features["pixel_values_videos"].double()}
    own = joint.model(input_ids=ids, **pixels).logits
    assert torch.allclose(own, untouched(input_ids=ids, **pixels).logits, atol=1e-9)
    learning = {name for name, weight in joint.named_parameters() if weight.requires_grad}
    assert {name for name in learning if name.startswith("model.")} == {
        name for name, _ in joint.named_parameters() if name.endswith((".up", ".down"))
    }
    assert (
        sum(name.endswith(".up") for name in learning) == 4 * 3
    )  # q, k, v, o of three layers: not the tower's
    assert any(name.startswith("head.") for name in learning)


def test_both_learn_and_the_heads_loss_reaches_the_target(joint, asked):
    joint.heads_weight = 1e6  # so that what reaches the target comes of the heads
    loss, figures = joint.loss(*asked[0])
    loss.backward()
    assert loss.item() == pytest.approx(figures["own"] + 1e6 * figures["heads"], rel=1e-6)
    ups = [weight.grad for name, weight in joint.named_parameters() if name.endswith(".up")]
    assert max(float(grad.abs().max()) for grad in ups) > 10


def test_learning_moves_the_target_and_its_folder_is_another_targets(joint, asked, tmp_path):
    loss_of = joint.loss_of(lambda step: asked)
    learning = [weight for weight in joint.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(learning, 0.02)
    losses = []
    for step in range(6):
        optimiser.zero_grad()
        loss, figures = loss_of(step, Share())
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert figures["tau"] >= 1
    prompt, answer = asked[0]
    before = joint._read(prompt, answer)[0].logits
    source = tmp_path / "source"
    source.mkdir()
    (source / "words.json").write_text("{}")
    (source / "model.safetensors").write_text("the old weights")
    save_joint(tmp_path / "out", joint, "medusa", source)
    found = type(joint.model).from_pretrained(tmp_path / "out" / "target", dtype=torch.double).eval()
    joint.model = found
    assert torch.allclose(joint._read(prompt, answer)[0].logits, before, atol=1e-6)
    named = json.loads((tmp_path / "out" / "head" / "config.json").read_text())["target"]
    assert named == fingerprint(tmp_path / "out" / "target")
    assert (tmp_path / "out" / "target" / "words.json").exists()
    load_head(tmp_path / "out" / "head", TargetTables.of(found), named)
    untouched, _ = ZOO["video_llava"]()
    moved = {
        name
        for name, weight in found.state_dict().items()
        if not torch.equal(weight, untouched.state_dict()[name])
    }
    assert len(moved) == 12
    assert all(name.rpartition(".")[0].endswith(("q_proj", "k_proj", "v_proj", "o_proj")) for name in moved)


def test_a_head_that_reads_more_of_the_target_is_refused():
    model, _ = ZOO["video_llava"]()
    sizes = {"heads": 2, "kv_heads": 2, "head_dim": 8, "intermediate_size": 16}
    with pytest.raises(CrossdraftError, match="Eagle3 reads more"):
        Joint(model, head_for(model, "eagle3", **sizes), OBJECTIVE, frozenset({VIDEO}))
