"""Checkpoints that are quantised already: loaded where their library is, else one sentence.

FP8 weights are made by hand: a block of 128 x 128 has one scale. Without a GPU transformers makes
bfloat16 of them.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import is_accelerate_available

from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft_lab.bench.scale_checkpoint import write_checkpoint

LAYERS = "language_model.model.layers."


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Video-LLaVA in one file."""
    folder = tmp_path_factory.mktemp("plain") / "target"
    write_checkpoint("video-llava-tiny", folder)
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def fp8(plain: Path, tmp_path: Path) -> Path:
    """The same with the language model's layers in FP8."""
    folder = shutil.copytree(plain, tmp_path / "fp8")
    weights = load_file(folder / "model.safetensors")
    for key in [key for key, weight in weights.items() if key.startswith(LAYERS) and weight.ndim == 2]:
        scale = weights[key].float().abs().max() / 448  # the largest number of the format
        rows, columns = (-(-side // 128) for side in weights[key].shape)
        weights[key] = (weights[key].float() / scale).to(torch.float8_e4m3fn)
        weights[key.replace(".weight", ".weight_scale_inv")] = scale.expand(rows, columns).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.video_tower", "model.image_tower", "model.multi_modal_projector"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the weights stay in FP8")
def test_fp8_loads_or_says_what_it_lacks(plain: Path, fp8: Path) -> None:
    if not is_accelerate_available():
        with pytest.raises(CrossdraftError, match=r"is quantised .*fp8.*requires accelerate .*16 or 32 bits"):
            load_target(str(fp8), "cpu")
        return
    model = load_target(str(fp8), "cpu", packed=False).model
    own = load_target(str(plain), "cpu", "bfloat16", packed=False).model
    name = "model.language_model.layers.1.mlp.up_proj.weight"
    found, wanted = model.get_parameter(name).float(), own.get_parameter(name).float()
    assert found.shape == wanted.shape
    assert 0 < (found - wanted).norm() < 0.04 * wanted.norm()
    assert model.dtype is torch.bfloat16


def test_it_is_not_quantised_twice(fp8: Path) -> None:
    with pytest.raises(CrossdraftError, match=r"is quantised already \(fp8\); leave out quantize=int8"):
        load_target(str(fp8), "cpu", quantize="int8")


def test_weights_of_a_method_that_transformers_does_not_know_are_not_taken_as_plain(
    plain: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(plain, tmp_path / "strange")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "nope"}}))
    with pytest.raises(CrossdraftError, match="which transformers does not know"):
        load_target(str(folder), "cpu")
