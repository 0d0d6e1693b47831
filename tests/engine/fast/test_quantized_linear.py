"""Quantised layers: their values by hand, a row's bits in any company, and whole pairs that stay lossless."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Blip2Config, Blip2ForConditionalGeneration, LlamaConfig, LlamaForCausalLM

import crossdraft as cd
from crossdraft.cli.main import main
from crossdraft.engine.fast import quantized_linear
from crossdraft.engine.fast.packed_linear import traced_products
from crossdraft.engine.fast.quantized_linear import (
    DTYPE,
    WIDE,
    QuantizedLinear,
    check_quantization,
    has_vnni,
    quantize_layers,
    quantized_layers,
    to_int4,
    to_int8,
)
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target, tokenizer_of
from crossdraft.models.eventgpt import convert_eventgpt
from crossdraft_lab.bench.scale_checkpoint import write_checkpoint
from tests.support import ClipPaths, PairPaths

BITS = (8, 4)


needs_vnni = pytest.mark.skipif(not has_vnni(), reason="this processor has no products of 8-bit numbers")


@pytest.fixture(params=[True, False], ids=["as_here", "without_vnni"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of this processor, and those of one without VNNI."""
    if not request.param:
        monkeypatch.setattr(quantized_linear, "has_vnni", lambda: False)


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
@pytest.mark.usefixtures("kernels")
@torch.inference_mode()
def test_weights_that_fit_are_kept_exactly(bits: int) -> None:
    layer = exact(bits)
    quantized = quantized_layers([layer], bits)[0]
    assert torch.equal(quantized(torch.eye(64, dtype=DTYPE)), layer.weight.T)
    assert torch.equal(quantized.weight, layer.weight)


@pytest.mark.parametrize(("bits", "error"), [(8, 0.006), (4, 0.09)])
@pytest.mark.usefixtures("kernels")
@torch.inference_mode()
def test_products_are_near_the_plain_layer_s(bits: int, error: float) -> None:
    layer = linear(bias=True)
    quantized = quantized_layers([layer], bits)[0]
    for rows in (torch.randn(2, 5, 96), torch.randn(WIDE + 1, 96)):
        wanted = layer.float()(rows)
        layer.to(DTYPE)
        assert (quantized(rows.to(DTYPE)) - wanted).norm() < error * wanted.norm()
    assert quantized(rows[:0].to(DTYPE)).shape == (0, 48)
    assert quantized.nbytes < layer.weight.nbytes * (0.53 if bits == 8 else 0.4)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(96, 48), (64, 96)])
@pytest.mark.usefixtures("kernels")
@torch.inference_mode()
def test_a_row_gets_the_same_bits_in_any_company(bits: int, shape: tuple[int, int]) -> None:
    quantized = quantized_layers([linear(*shape, bias=True)], bits)[0]
    rows = torch.randn(WIDE, shape[0]).to(DTYPE)
    together = quantized(rows)
    for count in (1, 2, 3, 8, 17, 33, 100):
        assert torch.equal(quantized(rows[:count].contiguous()), together[:count])


@needs_vnni
@torch.inference_mode()
def test_a_prompt_s_rows_do_not_depend_on_its_pieces() -> None:
    quantized = quantized_layers([linear()], 8)[0]
    rows = torch.randn(WIDE + 44, 96).to(DTYPE)
    assert torch.equal(quantized(rows), torch.cat([quantized(part) for part in rows.split((WIDE + 1, 43))]))


@needs_vnni
@torch.inference_mode()
def test_sums_of_whole_numbers_are_exact_at_their_largest() -> None:
    """By hand: 96 products of 127 and -127, and of -127 and 127; sums in 16 bits would be cut off."""
    layer = linear(96, 128)
    layer.weight.data = torch.full((128, 96), -127.0, dtype=DTYPE)
    layer.weight.data[1::2] = 127
    found = quantized_layers([layer], 8)[0](torch.full((1, 96), 127.0, dtype=DTYPE))
    assert torch.equal(found, 96 * 127 * 127 * layer.weight[None, :, 0].sign())


@needs_vnni
@torch.inference_mode()
def test_rows_behind_an_mlp_keep_16_bits() -> None:
    """One value is 300 times as large as the others, which 8 bits would round away."""
    narrow, wide = linear(96, 48), linear(64, 96)
    for layer, errors in ((narrow, (0, 0.01)), (wide, (0.05, 2))):
        rows = torch.rand(4, layer.in_features).to(DTYPE)
        rows[:, 0] = 300
        layer.weight.data[:, 0] = 0
        wanted = nn.functional.linear(rows.float(), quantized_layers([layer], 8)[0].weight.float())
        error = (quantized_layers([layer], 8)[0](rows) - wanted).norm() / wanted.norm()
        assert errors[0] <= error < errors[1]


@pytest.mark.parametrize("bits", BITS)
@torch.inference_mode()
def test_layers_of_one_input_are_one_product_and_can_be_traced(bits: int) -> None:
    plain = [linear(bias=True), linear(out=32, bias=True)]
    rows = torch.randn(3, 2, 96).to(DTYPE)
    both, alone = quantized_layers(plain, bits), [quantized_layers([one], bits)[0](rows) for one in plain]
    assert all(torch.equal(one(rows), own) for one, own in zip(both, alone, strict=True))
    traced = torch.compile(lambda given: traced_products(both, given), backend="eager", fullgraph=True)
    assert all(torch.equal(one, own) for one, own in zip(traced(rows), alone, strict=True))


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
    quantized = nn.Sequential(quantized_layers([linear()], 8)[0])
    with pytest.raises(CrossdraftError, match=r"cannot be moved to cpu or cast to torch\.float32"):
        quantized.float()
    quantized.to("cpu")


def llama(width: int = 64) -> Any:
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": width, "vocab_size": 48}
    model: Any = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, **sizes)
    )
    return model.to(DTYPE)


@pytest.mark.parametrize("kernels", [True, False], indirect=True)
def test_the_embedding_stays_and_plain_weights_go_layer_by_layer(kernels: None) -> None:
    model = llama()
    seen: list[weakref.ref[nn.Module]] = []
    alive: list[int] = []

    def fill(layer: nn.Module) -> None:
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(layer))

    assert quantize_layers(model, "int8", fill) == 3 * 7
    assert max(alive) <= 3, alive  # three read the same input
    assert type(model.model.embed_tokens) is nn.Embedding
    assert (type(model.lm_head) is nn.Linear) == (not quantized_linear.has_vnni())


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
    quantised = [key for key, one in layers.items() if isinstance(one, QuantizedLinear) and key != "lm_head"]
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


@needs_vnni
def test_a_head_inside_the_language_model_is_never_held_in_four_bits():
    """BLIP-2's language model is a whole one, with its head."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = sizes | {"model_type": "opt", "ffn_dim": 128, "vocab_size": 96, "word_embed_proj_dim": 64}
    vision = sizes | {"intermediate_size": 64, "image_size": 28}
    former = sizes | {"intermediate_size": 64, "vocab_size": 96, "encoder_hidden_size": 64}
    config = Blip2Config(vision_config=vision, qformer_config=former, text_config=text, num_query_tokens=4)
    model = Blip2ForConditionalGeneration(config).to(DTYPE).eval()
    saved = quantized_linear.bytes_saved(model, "int4")
    assert quantize_layers(model, "int4") == 6
    layers = [one for one in model.modules() if isinstance(one, QuantizedLinear)]
    head = model.get_output_embeddings()
    assert (head._product.bits, head._product.fine) == (8, True)
    assert {one._product.bits for one in layers if one is not head} == {4}
    assert saved == (4 * 64 * 64 + 2 * 64 * 128) * (16 - 5) // 8
