"""Networks at the size of any pair: parameters by hand, at 7B without making them, and a small pair measured."""

import json

import pytest
from transformers import CLIPVisionConfig, LlamaConfig, VideoLlavaConfig

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTConfig
from crossdraft_lab.align.networks.pointwise import MLPAdapter
from crossdraft_lab.bench.scale_models import DRAFTERS, TARGETS, shape_of
from crossdraft_lab.train.heads import scale
from crossdraft_lab.train.heads.scale import LM_HEAD, NAMES, PairShapes, network_costs, parameters_of

H, MLP, S = 4096, 11008, 1024
LAYER = 4 * H * H + 3 * H * MLP + 2 * H  # attention, gated MLP, two norms
PROJECT = H * H + H
SEVEN_B = {
    "none": PROJECT,
    "linear": PROJECT,
    "mlp": PROJECT + H * 1024 + 1024 + 1024 * H + H,
    "l4": PROJECT + LAYER + 1 + 2 * H,  # and a weight of the residual, and a norm
    "levels": 3 * H * H + H + (3 * H * 1024 + 1024) + (1024 * H + H),
    "token_projection": 32064 * 32000  # the map
    + (H * 2048 + 2048) + 2 * 2048 + (2048 * H + H),  # an MLP and its norm
    "logit_alignment": (100 * 2048 + 3 * 2048) + (2048 * 2048 + 3 * 2048) + (2048 * 100 + 100) + 3,
    "token_packer": S * S  # queries
    + 2 * (4 * S * S + S + S * S + S)  # keys and values
    + 3 * 2 * S + 4 * (S * S + S)  # norms, attention
    + S * H + H + H * H + H,  # projector
}  # fmt: skip


@pytest.fixture(scope="module")
def small():
    vision = CLIPVisionConfig(
        hidden_size=128, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, image_size=8, patch_size=4
    )
    text = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    target = VideoLlavaConfig(vision_config=vision, text_config=text, image_token_index=97, video_token_index=98)
    return PairShapes(target, EventGPTConfig(vision_config=vision, text_config=text, event_token_id=98))


def test_parameters_at_7b_by_hand():
    pair = PairShapes(shape_of("video-llava-7b", TARGETS), shape_of("eventgpt-7b", DRAFTERS))
    found = {name: parameters_of(name, pair.config(name)) for name in NAMES}
    assert {name: found[name] for name in SEVEN_B} == SEVEN_B
    assert found["linear"] < found["l1"] < found["l2"] < found["l3"] < found["l4"] < found["l5"] < found["l5f"]
    assert len(pair.config("l4").draft_ids) == 32000
    assert pair.config("token_packer").levels == (12, 16, 22, 23)


def test_every_network_is_made_learns_is_stored_loaded_and_timed(small):
    found = {one.network: one for one in network_costs(small, budget_s=0.0)}
    assert list(found) == [*NAMES, LM_HEAD]
    for name in NAMES:
        one = found[name]
        assert one.parameters == parameters_of(name, small.config(name)), name
        assert 2 * one.parameters < one.stored_bytes < 2 * one.parameters + 8000, name  # bfloat16, and a header
        assert one.seconds > 0
    assert [name for name, one in found.items() if one.per == "clip"] == [
        "vision_linear", "vision_mlp", "vision_queries", "token_packer",
    ]  # fmt: skip
    assert found["linear"].to_json().keys() == {"network", "parameters", "stored_bytes", "ms_per_token"}


def test_a_weight_that_learns_nothing_is_named(small, monkeypatch):
    """The planted bug: an inner layer that nothing reads."""
    monkeypatch.setattr(MLPAdapter, "align", lambda self, source, tokens, past=(): (self.project(source), ()))
    with pytest.raises(CrossdraftError, match=r"The weight up_proj.weight of the network mlp learns nothing"):
        list(network_costs(small, ["mlp"], 0.0))


def test_what_cannot_be_is_refused_before_anything_is_made(small, monkeypatch):
    with pytest.raises(CrossdraftError, match="'l9' is no adapter or packer"):
        next(network_costs(small, ["l9"]))
    monkeypatch.setattr(scale, "free_memory", lambda device: 1e6)
    monkeypatch.setattr(scale, "_cost", lambda *given: pytest.fail("made"))
    with pytest.raises(CrossdraftError, match=r"The network l4 of this size needs 1\.\d GB"):
        next(network_costs(small, ["l4"]))


def test_the_command(small, tmp_path, capsys):
    small.target.to_json_file(tmp_path / "target.json")
    small.drafter.to_json_file(tmp_path / "drafter.json")
    sizes = ["--config", str(tmp_path / "target.json"), "--drafter", str(tmp_path / "drafter.json"), "--budget", "0"]
    assert main(["scale", "adapters", "linear", "token_packer", *sizes, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["network"] for row in rows] == ["linear", "token_packer", LM_HEAD]
    assert rows[0]["parameters"] == 128 * 128 + 128
    assert main(["scale", "adapters", "linear", *sizes]) == 0
    assert "linear" in capsys.readouterr().out
    assert main(["scale", "adapters", "l9", *sizes]) == 2
    assert "'l9' is no adapter or packer" in capsys.readouterr().err
