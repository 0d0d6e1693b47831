"""Weights read layer by layer are those that `from_pretrained` loads, and never more of them are held than needed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, VideoLlavaForConditionalGeneration

from crossdraft.checkpoints import memory
from crossdraft.checkpoints.files import stored_tensors
from crossdraft.checkpoints.reader import read
from crossdraft.checkpoints.weights import load_weights
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft_lab.bench.scale_checkpoint import write_checkpoint
from tests.support import PairPaths

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_model_is_from_pretrained_s_to_the_bit(pair: PairPaths, dtype: torch.dtype) -> None:
    wanted: Any = VideoLlavaForConditionalGeneration.from_pretrained(str(pair.target), dtype=dtype)
    model, fill = load_weights(VideoLlavaForConditionalGeneration, pair.target, dtype, CPU)
    fill(model)
    for tensors in (lambda m: dict(m.named_parameters()), lambda m: dict(m.named_buffers())):
        found, expected = tensors(model), tensors(wanted)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert found[name].dtype is tensor.dtype
            assert torch.equal(found[name], tensor), name
    assert model.generation_config.to_dict() == wanted.generation_config.to_dict()
    assert model.config.to_dict() == wanted.config.to_dict()
    assert model.name_or_path == str(pair.target)
    assert not model.training


def test_without_a_generation_config_the_configuration_s_ends_hold(pair: PairPaths, tmp_path: Path) -> None:
    folder = shutil.copytree(pair.target, tmp_path / "target")
    (folder / "generation_config.json").unlink()
    wanted: Any = VideoLlavaForConditionalGeneration.from_pretrained(str(folder))
    model, _ = load_weights(VideoLlavaForConditionalGeneration, folder, torch.float32, CPU)
    assert model.generation_config.to_dict() == wanted.generation_config.to_dict()


def test_a_weight_that_is_not_read_is_nan_and_takes_no_memory(pair: PairPaths) -> None:
    loaded, fill = load_weights(VideoLlavaForConditionalGeneration, pair.target, torch.float32, CPU)
    model: Any = loaded
    head = model.lm_head
    assert head.weight.isnan().all()
    assert head.weight.untyped_storage().nbytes() == 4
    fill(head)
    assert not head.weight.isnan().any()
    assert model.get_input_embeddings().weight.isnan().all()  # and nothing else was
    fill(model)
    head.weight.data.zero_()
    fill(model)  # what was read is not read again
    assert not head.weight.any()


def test_a_shared_head_is_one_parameter(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    config = LlamaConfig(hidden_size=16, intermediate_size=24, tie_word_embeddings=True, **shape)
    wanted: Any = LlamaForCausalLM(config)
    wanted.save_pretrained(tmp_path)
    loaded, fill = load_weights(AutoModelForCausalLM, tmp_path, torch.float32, CPU)
    model: Any = loaded
    fill(model.lm_head)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, wanted.lm_head.weight)
    assert type(model) is LlamaForCausalLM


def test_a_file_that_was_cut_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1000)}, tmp_path / "model.safetensors")
    stored = stored_tensors(tmp_path)["weight"]
    assert torch.equal(read(stored), load_file(tmp_path / "model.safetensors")["weight"])
    with stored.path.open("r+b") as file:
        file.truncate(stored.begin + 100)
    with pytest.raises(CrossdraftError, match="ends too early"):
        read(stored)


def test_too_little_memory_is_one_sentence_before_anything_is_read(
    pair: PairPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = sum(torch.Size(tensor.shape).numel() for tensor in stored_tensors(pair.target).values())
    monkeypatch.setattr(memory, "free_memory", lambda _: numbers * 4 - 1)
    too_much = r"in float32, and cpu has .* GB free; try dtype=bfloat16 .* GB\), quantize=int8 or int4, another device"
    with pytest.raises(CrossdraftError, match=too_much):
        load_weights(VideoLlavaForConditionalGeneration, pair.target, torch.float32, CPU)
    load_weights(VideoLlavaForConditionalGeneration, pair.target, torch.bfloat16, CPU)


def test_what_quantising_saves_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 4 x 128 x 128 and 3 x 128 x 256 numbers, each 1 byte less in 8 bits and 11/8 less in 4."""
    write_checkpoint("video-llava-tiny", tmp_path)
    numbers = sum(torch.Size(tensor.shape).numel() for tensor in stored_tensors(tmp_path).values())
    layers = 2 * (4 * 128 * 128 + 3 * 128 * 256)
    for name, saved in (("int8", layers), ("int4", layers * 11 // 8)):
        monkeypatch.setattr(memory, "free_memory", lambda _, free=numbers * 2 - saved: free)
        load_target(str(tmp_path), "cpu", quantize=name)
        monkeypatch.setattr(memory, "free_memory", lambda _, free=numbers * 2 - saved - 1: free)
        with pytest.raises(CrossdraftError, match="free; try another device, or a smaller model"):
            load_target(str(tmp_path), "cpu", quantize=name)


def test_a_missing_shard_is_one_sentence(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model-00001-of-00002.safetensors")
    where = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    with pytest.raises(CrossdraftError, match=r"lacks model-00002-of-00002\.safetensors \(1 of 2 weight files"):
        stored_tensors(tmp_path)


DAMAGED_OFFSETS = {
    "overlap": ("b", [0, 16]),
    "before the first": ("a", [-8, 8]),
    "empty": ("b", [16, 16]),
    "reversed": ("b", [32, 16]),
    "hole": ("b", [20, 36]),
    "too short": ("a", [0, 12]),
    "no whole numbers": ("a", ["0", "16"]),
}


@pytest.mark.parametrize("damage", DAMAGED_OFFSETS)
def test_offsets_that_do_not_fit_the_tensors_are_one_sentence_that_names_one(tmp_path: Path, damage: str) -> None:
    """Two tensors of 16 bytes each, and two more behind them, so that the file's length still fits."""
    path = tmp_path / "model.safetensors"
    save_file({name: torch.full((4,), float(number)) for number, name in enumerate("abcd")}, path)
    assert [tensor.bytes for tensor in stored_tensors(tmp_path).values()] == [16] * 4
    name, offsets = DAMAGED_OFFSETS[damage]
    rewrite_header(path, lambda header: header[name].update(data_offsets=offsets))
    with pytest.raises(CrossdraftError, match=rf"^{path} .*'[{name}c]'.*; copy the checkpoint again, whole\.$"):
        stored_tensors(tmp_path)


def test_a_shape_that_does_not_fit_its_bytes_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4), "none": torch.ones(0, 3)}, path)
    assert stored_tensors(tmp_path)["none"].bytes == 0
    for shape in ([5], [-2, -2], [4, 2]):
        rewrite_header(path, lambda header, shape=shape: header["a"].update(shape=shape))
        with pytest.raises(CrossdraftError, match=r"puts 'a', F32 \[.*\], at bytes 0 to 16, which is not its size"):
            stored_tensors(tmp_path)


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a safetensors file's header; the tensors behind it stay as they are."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    written = json.dumps(header).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + content[8 + length :])
