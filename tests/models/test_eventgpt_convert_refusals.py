"""What the converter refuses: weights, shapes, files and folders, each with one sentence and nothing left after."""

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import convert_eventgpt
from crossdraft.models.eventgpt.configuration import EventGPTConfig
from tests.models.converting import ROWS, convert, official_source
from tests.models.official import HIDDEN, VISION_PREFIX, byte_tokenizer, official_weights, write_official


@pytest.mark.parametrize(
    "name", ["model.query_embeddings", "model.query_embedder.0.weight", "model.attention_layers.0.w"]
)
def test_q_former_weights_are_refused(tmp_path, name: str):
    with pytest.raises(CrossdraftError, match="Q-Former"):
        convert(tmp_path, official_weights(ROWS) | {name: torch.ones(2, 2)})
    assert not (tmp_path / "out").exists()


def test_a_q_former_in_the_configuration_is_refused_unless_it_is_off(tmp_path):
    convert(tmp_path, use_event_qformer=False)
    (tmp_path / "on").mkdir()
    with pytest.raises(CrossdraftError, match="use_event_qformer in its config"):
        convert(tmp_path / "on", use_event_qformer=True)


def test_everything_that_does_not_fit_is_listed_at_once(tmp_path):
    weights = official_weights(ROWS)
    del weights["model.feature_adaptor.bias"], weights["model.norm.weight"]
    weights["model.mystery"] = torch.ones(1)
    weights["model.visual_projector.0.weight"] = torch.ones(HIDDEN, 7)
    with pytest.raises(CrossdraftError) as caught:
        convert(tmp_path, weights)
    sentence = str(caught.value)
    assert (
        "2 missing (model.language_model.norm.weight" in sentence or "2 missing (model.event_adaptor.bias" in sentence
    )
    assert "model.event_adaptor.bias" in sentence
    assert "1 unexpected (model.mystery)" in sentence
    assert "1 of a wrong shape (model.multi_modal_projector.linear_1.weight [32, 7] instead of [32, 128])" in sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_many_missing_tensors_are_counted_not_listed(tmp_path):
    weights = {name: w for name, w in official_weights(ROWS).items() if not name.startswith("model.layers.")}
    with pytest.raises(CrossdraftError, match=r"18 missing \(.*and 10 more\)"):
        convert(tmp_path, weights)


@pytest.mark.parametrize(("lacking", "sentence"), [
    ("lm_head.weight", "lacks lm_head.weight"),
    (f"{VISION_PREFIX}vision_model.embeddings.patch_embedding.weight", "no CLIP vision encoder"),
])  # fmt: skip
def test_a_checkpoint_without_head_or_vision_encoder(tmp_path, lacking: str, sentence: str):
    weights = official_weights(ROWS)
    del weights[lacking]
    with pytest.raises(CrossdraftError, match=sentence):
        convert(tmp_path, weights)


@pytest.mark.parametrize("head", [(ROWS + 3, HIDDEN), (ROWS - 3, HIDDEN), (ROWS, HIDDEN + 1), (ROWS,)])
def test_a_head_that_does_not_match_the_embedding(tmp_path, head: tuple[int, ...]):
    with pytest.raises(CrossdraftError) as caught:
        convert(tmp_path, official_weights(ROWS) | {"lm_head.weight": torch.ones(head)})
    assert f"embedding is [{ROWS}, {HIDDEN}] and its head {list(head)}, but both" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(("name", "shape", "sentence"), [
    ("embeddings.position_embedding.weight", (), "no CLIP vision encoder"),
    ("embeddings.position_embedding.weight", (0, 128), "square images of whole patches, not 0 pixels"),
    ("encoder.layers.0.mlp.fc1.weight", (160,), "no CLIP vision encoder"),
    ("embeddings.patch_embedding.weight", (200, 3, 4, 4), "another shape than OpenAI's|No EventGPT can be built"),
    ("embeddings.patch_embedding.weight", (128, 3, 0, 0), "not 0 pixels in patches of 0"),
])  # fmt: skip
def test_a_vision_encoder_of_impossible_shapes(tmp_path, name: str, shape: tuple[int, ...], sentence: str):
    with pytest.raises(CrossdraftError, match=sentence):
        convert(tmp_path, official_weights(ROWS) | {f"{VISION_PREFIX}vision_model.{name}": torch.ones(shape)})


def test_quantised_weights_are_refused(tmp_path):
    small = {"model.norm.weight": torch.ones(HIDDEN, dtype=torch.int8)}
    with pytest.raises(CrossdraftError, match=r"1 of no floating-point type \(.*norm.weight torch.int8\)"):
        convert(tmp_path, official_weights(ROWS) | small)


@pytest.mark.parametrize("limit", [10_000, 200_000])
def test_a_full_disk_is_one_sentence(tmp_path, limit: int, monkeypatch):
    """The tokenizer does not fit below the first limit, the weights not below the second."""
    official_source(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # it would be cut off
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(CrossdraftError, match=r"Cannot write .*out \(.*\); free some space"):
            convert_eventgpt(tmp_path / "source", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_destination_that_is_no_folder(tmp_path):
    source = official_source(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CrossdraftError, match=r"Cannot write .*out: File exists; choose a place"):
        convert_eventgpt(source, tmp_path / "file" / "out")


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_damaged_shard_is_named(tmp_path, damage: str, pickled: bool):
    source = official_source(tmp_path, pickled=pickled, shards=2)
    shard = next(source.glob("*00002-of-00002*"))
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    if damage == "missing":
        shard.unlink()
    with pytest.raises(CrossdraftError, match=shard.name):
        convert_eventgpt(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Bomb:
    """Leaves a file after when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_is_refused_and_does_not(tmp_path):
    source = official_source(tmp_path, pickled=True)
    torch.save({"model.norm.weight": Bomb(tmp_path / "exploded")}, source / "pytorch_model.bin")
    with pytest.raises(CrossdraftError, match="holds more than tensors"):
        convert_eventgpt(source, tmp_path / "out")
    assert not (tmp_path / "exploded").exists()
    torch.load(source / "pytorch_model.bin", weights_only=False)  # the bomb is live
    assert (tmp_path / "exploded").exists()


def test_a_pickle_of_something_else_is_refused(tmp_path):
    source = official_source(tmp_path, pickled=True)
    torch.save({"step": 3}, source / "pytorch_model.bin")
    with pytest.raises(CrossdraftError, match="not a state dict"):
        convert_eventgpt(source, tmp_path / "out")


@pytest.mark.parametrize(("index", "sentence"), [
    ({"weight_map": {"a": "../secret.safetensors"}}, "points outside its folder"),
    ({"weight_map": {}}, "lists no shards"),
    ([], "must hold a JSON object"),
])  # fmt: skip
def test_a_wrong_index_is_refused(tmp_path, index: object, sentence: str):
    source = official_source(tmp_path, shards=2)
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CrossdraftError, match=sentence):
        convert_eventgpt(source, tmp_path / "out")


def test_incomplete_folders_are_refused(tmp_path):
    with pytest.raises(CrossdraftError, match=r"Cannot read .*config.json"):
        convert_eventgpt(tmp_path / "nowhere", tmp_path / "out")
    source = write_official(tmp_path / "source", official_weights(ROWS), None)
    with pytest.raises(CrossdraftError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        convert_eventgpt(source, tmp_path / "out")
    byte_tokenizer(ROWS).save_pretrained(str(source))
    (source / "model.safetensors").unlink()
    with pytest.raises(CrossdraftError, match="holds no weights"):
        convert_eventgpt(source, tmp_path / "out")
    (source / "tokenizer.json").write_text("{")
    with pytest.raises(CrossdraftError, match=r"The tokenizer in .* is damaged"):
        convert_eventgpt(source, tmp_path / "out")
    (source / "config.json").write_text("{")
    with pytest.raises(CrossdraftError, match="is not JSON"):
        convert_eventgpt(source, tmp_path / "out")


@pytest.mark.parametrize("wrong", [{"hidden_size": "wide"}, {"num_attention_heads": 5}])
def test_a_configuration_that_is_no_llama_s(tmp_path, wrong: dict[str, Any]):
    with pytest.raises(CrossdraftError, match="is no Llama's"):
        convert(tmp_path, **wrong)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization_config", {"bits": 4}),
        ("sliding_window", 64),
        ("use_sliding_window", True),
        ("partial_rotary_factor", 0.5),
        ("mm_vision_select_layer", -2),
        ("mm_projector_type", "linear"),
        ("logit_scale", 0.1),
        ("is_decoder", True),
        ("layer_types", ["sliding_attention"]),
        ("a_key_of_tomorrow", None),
    ],
)
def test_a_key_that_may_change_the_network_is_refused_by_name(tmp_path, key, value):
    source = official_source(tmp_path)
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CrossdraftError, match=f"config.json has {key} = "):
        convert_eventgpt(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_transformers_writes_into_any_configuration_changes_nothing(tmp_path):
    source = official_source(tmp_path)
    path, plain = source / "config.json", tmp_path / "plain"
    convert_eventgpt(source, plain)
    written = LlamaConfig().to_dict()
    kept = json.loads(path.read_text())
    path.write_text(
        json.dumps({**{key: written[key] for key in written.keys() - {"rope_parameters", "head_dim"}}, **kept})
    )
    convert_eventgpt(source, tmp_path / "full")
    assert (plain / "model.safetensors").read_bytes() == (tmp_path / "full" / "model.safetensors").read_bytes()
    vision = tmp_path / "vision.json"
    for made, words in (({}, None), ({"model_type": "siglip_vision_model"}, "model_type"), ({"rope_theta": 1}, "rope")):
        own = EventGPTConfig.from_pretrained(str(plain)).vision_config.to_dict()
        vision.write_text(json.dumps({"vision_config": {**own, **made}}))
        if words is None:
            convert_eventgpt(source, tmp_path / "seen", vision_config=vision)
        else:
            with pytest.raises(CrossdraftError, match=f"config.json has {words}"):
                convert_eventgpt(source, tmp_path / "unseen", vision_config=vision)


def test_nothing_is_overwritten(tmp_path):
    source = official_source(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    with pytest.raises(CrossdraftError, match="exists already"):
        convert_eventgpt(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]
