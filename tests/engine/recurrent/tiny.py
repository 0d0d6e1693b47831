"""Tiny random models with recurrent layers, and some that attend; prompts of text, an image or a clip."""

import os
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target

VOCABULARY, IMAGE, VIDEO = 99, 97, 98
ROPE = {"rope_type": "default", "rope_theta": 1e4}
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 1,
    "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1}
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
CONV = {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "block_auto_adjust_ff_dim": False}
KIMI = {
    "linear_num_heads": 4, "linear_head_dim": 16, "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4, "topk_group": 1, "n_shared_experts": 1,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
MAMBA = {
    "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8, "topk_group": 1,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 32,
}  # fmt: skip
INKLING = {
    "layer_types": ["hybrid_sliding", "hybrid"] * 2, "sliding_window_size": 6, "rel_extent": 9, "d_rel": 4,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 8, "log_scaling_n_floor": 5,
    "mlp_layer_types": ["dense", "sparse", "dense", "dense"], "n_shared_experts": 1, "logits_mup_width_multiplier": 1.0,
}  # fmt: skip
QWEN_ROPE = {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3], "mrope_interleaved": True}}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_heads": 2, "num_hidden_layers": 2,
    "depth": 2, "image_size": 16, "patch_size": 4, "out_hidden_size": 64, "num_position_embeddings": 16,
}  # fmt: skip
RADIO = {
    "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": 4, "image_size": 16,
    "max_img_size": 32, "video_temporal_patch_size": 2,
}  # fmt: skip
TEXT = {"qwen3_next": DELTA | EXPERTS, "kimi_linear": KIMI | EXPERTS, "lfm2": CONV, "nemotron_h": MAMBA | EXPERTS}
SEES = {
    "qwen3_5": DELTA | QWEN_ROPE,
    "qwen3_5_moe": DELTA | QWEN_ROPE | EXPERTS | {"shared_expert_intermediate_size": 32},
    "lfm2_vl": CONV | {"model_type": "lfm2"},
    "inkling_mm_model": INKLING | EXPERTS,
    "lfm3_vl": CONV | {"layer_types": ["conv", "sliding_attention", "conv", "full_attention"], "sliding_window": 8},
    "nemotron_h_omni": MAMBA | EXPERTS,
}
KINDS = dict.fromkeys(TEXT, ("text",)) | dict.fromkeys(SEES, ("text", "image", "video"))
KINDS["lfm2_vl"] = KINDS["inkling_mm_model"] = ("text", "image")  # they read no clips
KINDS["nemotron_h_omni"] = ("text", "image")  # its clips fail in transformers 5.23 itself


WITHOUT_POSITIONS = ("kimi_linear", "nemotron_h", "nemotron_h_omni")  # their order is the states' alone
FOLDS = ("inkling_mm_model",)  # whose encoder folds patches of two frames
EXACT = ("lfm2", "lfm2_vl", "lfm3_vl")  # the others compute their states in float32, whatever their weights are in


def tiny(kind: str, dtype: torch.dtype = torch.float64, **more: Any) -> PreTrainedModel:
    """A random model of a type, whose tokens depend on one another strongly."""
    config = CONFIG_MAPPING[kind]
    if kind in TEXT:
        sizes = SIZES | TEXT[kind] | more
        if kind == "nemotron_h":
            del sizes["num_hidden_layers"]
        made: Any = config(**sizes)
        build: Any = transformers.AutoModelForCausalLM.from_config
    else:
        text, ids = SIZES | SEES[kind], {"image_token_id": IMAGE, "video_token_id": VIDEO}
        if kind == "nemotron_h_omni":
            del text["num_hidden_layers"]
            tower = RADIO | {"dtype": dtype}  # which its pixels are cast to
            made = config(text_config=text, vision_config=tower, vision_hidden_size=32, **ids, audio_token_id=96)
        else:
            ids |= {"vision_start_token_id": 95, "vision_end_token_id": 96}
            tower = VISION | ({"num_hidden_layers": 3} if kind in FOLDS else {})
            made = config(text_config=text, vision_config=tower, **ids)
        build = transformers.AutoModelForMultimodalLM.from_config
    torch.manual_seed(0)
    model = build(made).to(dtype).eval()
    model.set_experts_implementation("eager")  # there are no kernels for doubles
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(3)
            if kind in FOLDS and name == "lm_head.weight":  # an answer without placeholders can be a turn's beginning
                weight[IMAGE:].zero_()
            if name.endswith(("A_log", "dt_bias")):  # memories of some ten tokens
                weight.copy_(torch.linspace(-2.5, -1, weight.numel()).view_as(weight))
    return model


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def prompt_of(kind: str, what: str, words: tuple[int, ...] = (11, 12, 13, 14, 15)) -> Prompt:
    """A prompt of words, behind an image or a clip."""
    if what == "text":
        return Prompt(torch.tensor([1, 5, 6, *words, 7, 8, 9]))
    if kind in FOLDS:
        return Prompt(torch.tensor([1, 5, 6, *[IMAGE] * 4, *words, 9]), {"pixel_values": random(4, 2, 4, 4, 3)})
    if kind == "lfm2_vl":
        sides = {"spatial_shapes": torch.tensor([[4, 4]]), "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long)}
        return Prompt(torch.tensor([1, 5, 6, *[IMAGE] * 4, *words, 9]), {"pixel_values": random(1, 16, 48), **sides})
    if kind == "nemotron_h_omni":
        ids = torch.tensor([1, 5, 6, *[IMAGE] * 4, *words, 9])
        return Prompt(ids, {"pixel_values": random(16, 48), "image_grid_hw": torch.tensor([[4, 4]])})
    frames, token = (2, VIDEO) if what == "video" else (1, IMAGE)
    shown = [part for frame in range(frames) for part in (40 + frame, 95, *[token] * 4, 96)]
    ids = torch.tensor([1, 5, *shown, *words, 9])
    names = ("pixel_values_videos", "video_grid_thw") if what == "video" else ("pixel_values", "image_grid_thw")
    features = {names[0]: random(16 * frames, 3 * 2 * 16), names[1]: torch.tensor([[frames, 4, 4]])}
    if kind.startswith("qwen"):
        features["mm_token_type_ids"] = (ids == token)[None].int() * (2 if what == "video" else 1)
    return Prompt(ids, features)


def target_of(model: PreTrainedModel) -> Target:
    """A target of ready-made inputs, whose answers never end by themselves."""

    def prepare(request: Request) -> Prompt:
        given = dict(request.inputs or {})
        return Prompt(given.pop("input_ids")[0], given)

    model.generation_config.eos_token_id = None
    return Target(model, prepare, lambda ids: " ".join(map(str, ids)), [])


def ask(prompt: Prompt, length: int = 24, **more: Any) -> Request:
    """A request for a prompt."""
    inputs = {"input_ids": prompt.input_ids[None], **prompt.features}
    return Request("x", inputs=inputs, max_new_tokens=length, **more)


def generated(model: PreTrainedModel, request: Request) -> tuple[int, ...]:
    """The tokens that transformers' own `generate` says, greedily."""
    inputs = {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in (request.inputs or {}).items()}
    length, mask = request.max_new_tokens, torch.ones_like(inputs["input_ids"])
    found = model.generate(**inputs, attention_mask=mask, max_new_tokens=length, do_sample=False, pad_token_id=0)
    return tuple(found[0, inputs["input_ids"].shape[1] :].tolist())


def kernel() -> tuple[Any, str]:
    """The fused kernel of the rules and the device that runs it: a GPU, or in Triton's interpreter the CPU; or skip."""
    pytest.importorskip("triton", reason="triton is not installed; `make kernels` needs no GPU")
    if not (interprets := os.environ.get("TRITON_INTERPRET") == "1") and not torch.cuda.is_available():
        pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set")
    from crossdraft.engine.recurrent.fused import fused_tree

    return fused_tree, "cpu" if interprets else "cuda"
