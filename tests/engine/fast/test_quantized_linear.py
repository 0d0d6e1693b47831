"""Quantised layers: their values by hand, a row's bits in any company, and whole pairs that stay lossless."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import crossdraft as cd
from crossdraft.cli.main import main
from crossdraft.engine.fast.quantized_linear import (
    DTYPE,
    WIDE,
    QuantizedLinear,
    check_quantization,
    quantize_layers,
    to_int4,
    to_int8,
)
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target, tokenizer_of
from crossdraft.models.eventgpt import convert_eventgpt
from crossdraft_lab.bench.scale_checkpoint import write_checkpoint
from tests.support import ClipPaths, PairPaths

BITS = (8, 4)


def linear(width: int = 96, out: int = 48, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, out, bias=bias).to(DTYPE)


def exact(bits: int) -> nn.Linear:
    """Weights that 8 or 4 bits hold exactly: whole numbers of the full range in each row and group."""
    layer = linear(64, 32)
    top = 127 if bits == 8 else 15
    whole = torch.randint(-top, top + 1, (32, 64)) if bits == 8 else torch.randint(0, 16, (32, 64))
    whole[:, ::32], whole[:, 1::32] = (top, -top) if bits == 8 else (15, 0)
    layer.weight.data = whole.to(DTYPE)
    return layer


@pytest.mark.parametrize("bits", BITS)
@torch.inference_mode()
def test_weights_that_fit_are_kept_exactly(bits: int) -> None:
    layer = exact(bits)
    quantized = QuantizedLinear(layer, bits)
    assert torch.equal(quantized(torch.eye(64, dtype=DTYPE)), layer.weight.T)
    assert torch.equal(quantized.weight, layer.weight)


@pytest.mark.parametrize(("bits", "error"), [(8, 0.006), (4, 0.09)])
@torch.inference_mode()
def test_products_are_near_the_plain_layer_s(bits: int, error: float) -> None:
    layer = linear(bias=True)
    quantized = QuantizedLinear(layer, bits)
    for rows in (torch.randn(2, 5, 96), torch.randn(WIDE + 1, 96)):
        wanted = layer.float()(rows)
        layer.to(DTYPE)
        assert (quantized(rows.to(DTYPE)) - wanted).norm() < error * wanted.norm()
    assert quantized(rows[:0].to(DTYPE)).shape == (0, 48)
    assert quantized.nbytes < layer.weight.nbytes * (0.52 if bits == 8 else 0.4)


@pytest.mark.parametrize("bits", BITS)
@torch.inference_mode()
def test_a_row_gets_the_same_bits_in_any_company(bits: int) -> None:
    quantized = QuantizedLinear(linear(), bits)
    rows = torch.randn(WIDE, 96).to(DTYPE)
    together = quantized(rows)
    for count in (1, 2, 3, 8, 17, 33, 100):
        assert torch.equal(quantized(rows[:count].contiguous()), together[:count])


def test_scales_by_hand() -> None:
    quantized, scales = to_int8(torch.tensor([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0]]))
    assert scales[0] == torch.tensor(2 / 127, dtype=DTYPE)
    assert quantized.tolist() == [[32, -127, 64], [0, 0, 0]]
    weight = torch.zeros(16, 32)
    weight[:, 0], weight[:, 1] = -0.5, 1.375  # scale 1/8, zero 1/2
    _, steps = to_int4(weight)
    assert steps.shape == (1, 16, 2)
    assert steps[0, 3].tolist() == [0.125, 0.5]


def test_quantised_layers_are_neither_moved_nor_cast() -> None:
    quantized = nn.Sequential(QuantizedLinear(linear(), 8))
    with pytest.raises(CrossdraftError, match=r"cannot be moved to cpu or cast to torch\.float32"):
        quantized.float()
    quantized.to("cpu")
    assert "bits=8" in repr(quantized)


def llama(width: int = 64) -> Any:
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": width, "vocab_size": 40}
    model: Any = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, **sizes)
    )
    return model.to(DTYPE)


def test_the_head_and_the_embedding_stay_and_plain_weights_go_layer_by_layer() -> None:
    model = llama()
    seen: list[weakref.ref[nn.Module]] = []
    alive: list[int] = []

    def fill(layer: nn.Module) -> None:
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(layer))

    assert quantize_layers(model, "int8", fill) == 3 * 7
    assert max(alive) <= 1, alive
    assert type(model.lm_head) is nn.Linear
    assert sum(type(module) is nn.Linear for module in model.modules()) == 1


def test_what_cannot_be_quantised_is_one_sentence() -> None:
    with pytest.raises(CrossdraftError, match="has no layer for quantize=int4"):
        quantize_layers(llama(40), "int4")
    with pytest.raises(
        CrossdraftError, match=r"is cuda:1; leave it out \(of a drafter: draft_quantize=none\), or choose"
    ):
        check_quantization("int8", torch.device("cuda:1"), DTYPE)
    with pytest.raises(
        CrossdraftError, match=r"is float32; leave the dtype out, or quantize \(of a drafter: draft_quantize=none\)\."
    ):
        check_quantization("int8", torch.device("cpu"), torch.float32)
    with pytest.raises(CrossdraftError, match="Unknown quantize 'int3'"):
        cd.Options(quantize="int3")
    assert cd.Options(quantize="none").quantize is None


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_quantised_pair_answers_as_its_quantised_target_alone(name: str, clip: ClipPaths, tmp_path: Path) -> None:
    write_checkpoint("video-llava-tiny", tmp_path / "target")
    write_checkpoint("eventgpt-tiny", tmp_path / "official")
    convert_eventgpt(tmp_path / "official", tmp_path / "event")
    request = cd.Request(video=clip.video, events=clip.events, prompt="What is ahead?", max_new_tokens=12)
    plain: Any = load_target(str(tmp_path / "target"), "cpu", "bfloat16", packed=False).model
    options = cd.Options(device="cpu", quantize=name, placement="inline")
    with cd.Engine.load(tmp_path / "target", f"union:{tmp_path / 'event'},ngram", options) as engine:
        answer = engine.generate(request)
        assert answer.drafter_error is None
        assert answer.tokens == engine.alone(request).tokens
        layers: dict[str, Any] = dict(engine.target.model.named_modules())
    quantised = [key for key, module in layers.items() if isinstance(module, QuantizedLinear)]
    assert len(quantised) == 2 * 7
    assert all(key.startswith("model.language_model.") for key in quantised)
    key = quantised[0]
    rows = torch.eye(128, dtype=DTYPE)
    own = plain.get_submodule(key).weight.T.float()
    assert 0 < (layers[key](rows).float() - own).norm() < 0.1 * own.norm()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_heads_draft_for_a_quantised_target(name: str, clip: ClipPaths) -> None:
    request = cd.Request(video=clip.video, prompt="What is ahead?", max_new_tokens=24)
    options = cd.Options(device="cpu", quantize=name, placement="inline")
    with cd.Engine.load("reference", "union:eagle2,vispec", options) as engine:
        answer = engine.generate(request)
        assert answer.drafter_error is None
        assert answer.tokens == engine.alone(request).tokens


def test_the_command_line_and_loaded_models(
    pair: PairPaths, clip: ClipPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["ask", "What is ahead?", "--video", str(clip.video), "--target", str(pair.target), "--drafter", "none"]
    assert main([*asked, "--quantize", "int9"]) == 2
    assert "Unknown --quantize 'int9'; choose one of none, int8, int4." in capsys.readouterr().err
    assert main([*asked, "--quantize", "int8", "--dtype", "float32", "--device", "cpu"]) == 2
    assert "computes in bfloat16" in capsys.readouterr().err
    model: Any = load_target(str(pair.target), "cpu", packed=False).model
    with pytest.raises(CrossdraftError, match="for the drafter of a loaded model say draft_quantize"):
        cd.Engine.from_model(model, tokenizer_of(str(pair.target)), None, cd.Options(quantize="int8"))
