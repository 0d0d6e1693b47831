"""Heads on disk, and what is refused."""

import json
from dataclasses import fields

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import config_of, described, fits, load_head, read_config, save_head
from crossdraft.heads.folders import head_json
from crossdraft.heads.networks.base import SharedWeights, shifted
from crossdraft.heads.registry import NETWORKS
from crossdraft.load import load_target
from crossdraft_lab.objective import target_to_draft
from tests.heads.consistency import VALUES, shared, some_head

ELSEWHERE = {"event_medusa"}  # heads that are no reader of the target's features
PLAIN = sorted(NETWORKS.keys() - ELSEWHERE)
SIZES = {
    "token_size": 8, "width": 64, "drafter": "a drafter's hash", "source_size": 20, "source_layers": (1, 2),
    "source_frames": 3, "source_tokens": 5, "tokens": 4, "length": 32,
    "levels": (1, 2, 4), "side": 4, "class_token": True, "top": 20,
}  # fmt: skip
EAGLE = {field.name: VALUES[field.name] for field in fields(NETWORKS["eagle"].config_class) if field.name in VALUES}


@pytest.mark.parametrize("network", PLAIN)
def test_a_saved_head_is_loaded_unchanged(network, tmp_path):
    head = some_head(network, SIZES).float()
    save_head(tmp_path, head, network, "target's hash", torch.float32)
    again = load_head(tmp_path, shared(), "target's hash", network)
    assert read_config(tmp_path).config == head.config
    ours, theirs = head.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    own = head.stored().keys()
    assert own
    assert all(torch.equal(ours[name], theirs[name]) for name in own)


def test_shared_weights_are_not_stored(tmp_path):
    save_head(tmp_path, some_head("eagle"), "eagle", "x")
    names = load_file(tmp_path / "model.safetensors").keys()
    assert not any("lm_head" in name or "embed" in name for name in names)
    other = SharedWeights(shared().embeddings, shared().lm_head + 1)
    head = load_head(tmp_path, other)
    assert torch.allclose(head.lm_head.weight, other.lm_head[head.draft_ids].float())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 7}, "describes a head of the network 'eagle', which this version of crossdraft does not have"),
        ({"network": "eagel"}, "describes a head of the network 'eagel', which this version of crossdraft does not"),
        ({"scale": 2}, "has no key 'scale'; its keys are format, network, target, config"),
        ({"config": {**EAGLE, "head": 4, "draft_ids": [3, 4]}}, "no setting 'head'; did you mean 'heads'?"),
        ({"config": {"heads": 4}}, "settings of the network 'eagle' are missing"),
        ({"config": {**EAGLE, "draft_ids": [4, 3]}}, "must rise"),
        ({"config": {**EAGLE, "draft_ids": [3, 60]}}, "less than 60"),
    ],
)
def test_an_invalid_configuration_is_refused_in_one_sentence(change, sentence, tmp_path):
    save_head(tmp_path, some_head("eagle"), "eagle", "x")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CrossdraftError, match=sentence.replace("?", r"\?")):
        load_head(tmp_path, shared())


def test_a_setting_that_an_older_version_wrote_and_no_network_has_is_passed_over(tmp_path):
    save_head(tmp_path, some_head("eagle"), "eagle", "x")
    path = tmp_path / "config.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"config": found["config"] | {"frames_dropped": 0.5}}))
    assert read_config(tmp_path).config == some_head("eagle").config


def test_a_folder_without_a_head_says_where_there_is_one(tmp_path):
    with pytest.raises(
        CrossdraftError, match=r"There is no folder .*nowhere; `crossdraft train` and `head import` write heads\."
    ):
        read_config(tmp_path / "nowhere")
    with pytest.raises(CrossdraftError, match="holds no head; `crossdraft train`"):
        read_config(tmp_path)
    (tmp_path / "head").mkdir()
    save_head(tmp_path / "head", some_head("eagle"), "eagle", "x")
    with pytest.raises(CrossdraftError, match=f"holds no head; its head lies in {tmp_path / 'head'}"):
        read_config(tmp_path)
    with pytest.raises(CrossdraftError, match=f"it is a head, which a drafter takes .*METHOD:dir={tmp_path}"):
        load_target(str(tmp_path / "head"))


def test_a_head_of_another_target_or_network_is_refused(tmp_path):
    save_head(tmp_path, some_head("eagle"), "eagle", "a" * 64)
    with pytest.raises(CrossdraftError, match=r"trained for another target \(aaaaaaaaaaaa…, this one is bbb"):
        load_head(tmp_path, shared(), "b" * 64)
    with pytest.raises(CrossdraftError, match="of the network 'eagle', not 'eagle3'"):
        load_head(tmp_path, shared(), network="eagle3")
    smaller = SharedWeights(shared().embeddings[:, :16], shared().lm_head[:, :16])
    with pytest.raises(CrossdraftError, match="made for a target of 60 tokens and 32 features"):
        load_head(tmp_path, smaller)


def test_weights_that_do_not_fit_are_named(tmp_path):
    save_head(tmp_path, some_head("eagle"), "eagle", "x")
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    save_file({name: value for name, value in weights.items() if name != "fc.bias"}, path)
    with pytest.raises(CrossdraftError, match=r"'fc\.bias' is missing"):
        load_head(tmp_path, shared())
    save_file({**weights, "fc.bias": torch.zeros(3)}, path)
    with pytest.raises(CrossdraftError, match=r"'fc\.bias' is missing, left over or of another shape"):
        load_head(tmp_path, shared())
    path.write_bytes(b"no tensors")
    with pytest.raises(CrossdraftError, match="cannot be read"):
        load_head(tmp_path, shared())


def test_an_unknown_network_is_named_with_the_nearest():
    with pytest.raises(CrossdraftError, match="did you mean 'eagle3'"):
        config_of("eegle3", {}, "here")


@pytest.mark.parametrize(
    ("network", "change", "sentence"),
    [
        ("eagle", {"steps": "abc"}, r"^here: the setting 'steps' of the network 'eagle' must be a whole number"),
        ("eagle", {"rope_theta": "1e4"}, "'rope_theta' of the network 'eagle' must be a number, not '1e4'"),
        ("eagle", {"heads": 2.0}, "'heads' of the network 'eagle' must be a whole number, not 2.0"),
        ("eagle", {"draft_ids": 3}, "'draft_ids' of the network 'eagle' must be a list, each a whole number, not 3"),
        ("eagle3", {"levels": [1, "x", 3]}, "must be a list, each a whole number, or null"),
        ("hivis", {"first_norm": "no"}, "must be true or false, not 'no'"),
        ("eagle", {"heads": 3}, "heads=3 must be a multiple of its kv_heads=2"),
        ("eagle", {"head_dim": 7}, "head_dim must be even"),
        ("eagle", {"kv_heads": 0}, "kv_heads is 0; it must be at least 1"),
        ("eagle", {"intermediate_size": -4}, "intermediate_size is -4; it must be at least 1"),
        ("dflash", {"steps": 0}, "steps is 0; it must be at least 1"),
        ("hydra++", {"token_size": 8, "width": 8, "max_positions": 0}, "max_positions is 0; it must be at least 1"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused_in_one_sentence(network, change, sentence):
    with pytest.raises(CrossdraftError, match=sentence) as found:
        config_of(network, {**EAGLE, **change}, "here")
    assert "\n" not in str(found.value)


def test_every_network_takes_settings_of_the_right_kind():
    for network, known in NETWORKS.items():
        names = {field.name for field in fields(known.config_class)}
        given = {name: value for name, value in {**VALUES, **SIZES}.items() if name in names}
        assert config_of(network, given | {"draft_ids": [3, 4]}, "here").draft_ids == (3, 4)


def test_small_helpers():
    assert shifted(torch.tensor([[1, 2, 3]]), 5).tolist() == [[0, 0, 0]]
    assert target_to_draft([4, 1], 6).tolist() == [-1, 1, -1, -1, 0, -1]


RIGHT = [
    (3, int), (3, float), (0.5, float), (True, bool), ("x", str),
    ((1, 2), tuple[int, ...]), ((), tuple[float, ...]), ((1, 0.5), tuple[float, ...]), (None, int | None),
    (7, int | None),
]  # fmt: skip
WRONG = [
    ("3", int), (3.0, int), (True, int), (False, float), ("1e-6", float), (1, bool),
    (3, tuple[int, ...]), ((1, "2"), tuple[int, ...]), ("12", tuple[int, ...]), ([1], tuple[int, ...]), (None, int),
    ("7", int | None), ({}, int),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), RIGHT)
def test_values_of_the_type_fit(value, kind):
    assert fits(value, kind)


@pytest.mark.parametrize(("value", "kind"), WRONG)
def test_values_of_another_type_do_not_fit(value, kind):
    assert not fits(value, kind)


def test_types_in_words():
    assert described(tuple[int, ...] | None) == "a list, each a whole number, or null"
    assert described(int | None) == "a whole number, or null"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
         "holds a head of another project .layout eagle.; `crossdraft head import .* NEW`"),
        ({"model_type": "qwen2_vl"}, "holds no head but a model of type 'qwen2_vl'; as a drafter it is model:dir="),
        ({"model_type": "gemma4_assistant"}, "of type 'gemma4_assistant'; as a drafter it is assistant:dir="),
    ],
)  # fmt: skip
def test_a_folder_of_something_else_is_named_with_the_drafter_that_takes_it(tmp_path, config, sentence):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CrossdraftError, match=sentence) as error:
        head_json(tmp_path)
    assert str(error.value).count("eagle") <= 1  # no list of networks
