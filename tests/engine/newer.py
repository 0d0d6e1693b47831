"""Tiny random models of the classes of 2025 and 2026 whose masks, positions or experts are not a causal decoder's."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.prompt import Prompt
from tests.engine.zoo import IMAGE, TEXT, VIDEO, VOCABULARY, build

DECODER = TEXT | {"head_dim": 16, "num_hidden_layers": 4}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4}
GRIDS = TOWER | {"depth": 2, "num_heads": 2, "embed_dim": 32, "out_hidden_size": 64, "image_size": 16}
NEAR_AND_FAR = ["sliding_attention", "full_attention"] * 2
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
START, END = 90, 91
AUDIO = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 8}
AUDIO |= {"output_dim": 64, "max_source_positions": 64, "downsample_hidden_size": 8, "n_window": 4}
Inputs = dict[str, Tensor]


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(7))


def prompt(
    kind: str, count: int, inputs: Inputs, *, token: int | None = None, marks: str = "mm_token_type_ids"
) -> Prompt:
    """Words, an image or a clip of `count` tokens, words; around it the marks of M-RoPE models."""
    token = token or (IMAGE if kind == "image" else VIDEO)
    ids = torch.tensor([1, 5, 6, START, *[token] * count, END, 7, 8, 9])
    types = (ids == token)[None].int() * (2 if kind == "video" else 1)
    return Prompt(ids, {**inputs, **dict.fromkeys(marks.split(), types)})


def _places(count: int, side: int) -> Tensor:
    """[count, side², 2] columns and rows of patches."""
    grid = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="xy")
    return torch.stack(grid, -1).reshape(1, side**2, 2).repeat(count, 1, 1)


def _patches(kind: str, width: int) -> Inputs:
    """Patches [n, width] of an image of 4 x 4, or of a clip of two such frames."""
    grid = torch.tensor([[1 + (kind == "video"), 4, 4]])
    pixels, size = ("pixel_values_videos", "video_grid_thw") if kind == "video" else ("pixel_values", "image_grid_thw")
    return {pixels: noise(int(grid.prod()), width), size: grid}


def gemma4(kind: str, *, unified: bool = False, **more: Any) -> tuple[PreTrainedModel, Prompt]:
    rope = {
        "sliding_attention": ROPE,
        "full_attention": ROPE | {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
    text = DECODER | {
        "layer_types": NEAR_AND_FAR,
        "rope_parameters": rope,
        "global_head_dim": 32,
        "num_kv_shared_layers": 0,
    }
    text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCABULARY} | more
    tower = TOWER | {"pooling_kernel_size": 2, "head_dim": 16, "global_head_dim": 16, "num_key_value_heads": 2}
    tower |= {"position_embedding_size": 64, "max_position_embeddings": 512}
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO}
    if unified:
        text = {name: value for name, value in text.items() if "per_layer" not in name}
        tower = {
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "mm_embed_dim": 64,
            "mm_posemb_size": 32,
            "output_proj_dims": 64,
        }
        config: Any = transformers.Gemma4UnifiedConfig(text_config=text, vision_config=tower, **ids)
        model = build(transformers.Gemma4UnifiedForConditionalGeneration, config, "sdpa")
    else:
        config = transformers.Gemma4Config(text_config=text, vision_config=tower, **ids)
        model = build(transformers.Gemma4ForConditionalGeneration, config, "sdpa")
    count, side, step = 1 + (kind == "video"), 2 if unified else 4, 8 if unified else 4
    pixels = noise(count, side**2, 3 * step**2)
    if kind == "image":
        return model, prompt(kind, 4, {"pixel_values": pixels, "image_position_ids": _places(1, side)})
    clip = {
        "pixel_values_videos": pixels,
        "video_position_ids": _places(2, side),
        "num_frames_per_video": torch.tensor([2]),
    }
    return model, prompt(kind, 8, clip)


def molmo2(kind: str) -> tuple[PreTrainedModel, Prompt]:
    adapter = {"vision_feature_layer": [2, 1], "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    adapter |= {"head_dim": 16, "intermediate_size": 48, "text_hidden_size": 64}
    tower = TOWER | {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16, "image_size": [16, 16]}
    config = transformers.Molmo2Config(
        text_config=DECODER | {"additional_vocab_size": 8},
        vision_config=tower | {"num_position_embeddings": 16},
        adapter_config=adapter,
        image_patch_id=IMAGE,
    )
    model = build(transformers.Molmo2ForConditionalGeneration, config, "sdpa")
    pool = torch.arange(16).reshape(4, 4)
    if kind == "video":
        clip = {"pixel_values_videos": noise(2, 16, 48), "video_token_pooling": torch.cat((pool, pool + 16))}
        return model, prompt("image", 8, clip | {"video_grids": torch.tensor([[2, 2, 2]])})
    shown = {"pixel_values": noise(1, 16, 48), "image_token_pooling": pool, "image_grids": torch.tensor([[2, 2, 0, 0]])}
    return model, prompt("image", 4, shown | {"image_num_crops": torch.tensor([1])})


def hunyuan(kind: str) -> tuple[PreTrainedModel, Prompt]:
    tower = GRIDS | {"text_hidden_size": 64, "num_key_value_heads": 2, "max_vit_seq_len": 256, "max_image_size": 64}
    config = transformers.HunYuanVLConfig(
        text_config=DECODER | {"rope_parameters": ROPE | {"mrope_section": [2, 2, 2, 2]}},
        vision_config=tower | {"min_image_size": 16, "img_max_token_num": 64},
        image_token_id=IMAGE,
        im_start_id=START,
        im_end_id=END,
        im_newline_id=92,
    )
    model = build(transformers.HunYuanVLForConditionalGeneration, config, "sdpa")
    shown = _patches("image", 48)
    with torch.inference_mode():
        rows = model.base_model.get_image_features(
            **{k: v.double() if v.is_floating_point() else v for k, v in shown.items()}
        )
    return model, prompt("image", sum(map(len, rows.pooler_output)), shown)


def ernie(kind: str) -> tuple[PreTrainedModel, Prompt]:
    text = (
        DECODER
        | EXPERTS
        | {"moe_intermediate_size": [32, 32], "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1}
    )
    config = transformers.Ernie4_5_VLMoeConfig(
        text_config=text
        | {"rope_parameters": ROPE | {"mrope_section": [2, 2, 4]}, "mlp_layer_types": ["dense"] + ["sparse"] * 3},
        vision_config=GRIDS | {"spatial_merge_size": 2, "temporal_merge_size": 2},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
    )
    model = build(transformers.Ernie4_5_VLMoeForConditionalGeneration, config, "sdpa")
    return model, prompt(kind, 4, _patches(kind, 48), marks="mm_token_type_ids moe_mm_token_type_ids")


def omni(kind: str, version: str = "2.5") -> tuple[PreTrainedModel, Prompt]:
    tower = GRIDS | {"spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [0, 1]}
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO, "audio_token_id": 96}
    ids |= {"vision_start_token_id": START, "vision_end_token_id": END}
    if version == "2.5":
        kinds = transformers.Qwen2_5OmniThinkerConfig, transformers.Qwen2_5OmniThinkerForConditionalGeneration
        text, tower = DECODER | {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3]}}, tower | {"window_size": 16}
        ids |= {"image_token_index": IMAGE, "video_token_index": VIDEO, "audio_token_index": 96}
    else:
        kinds = transformers.Qwen3OmniMoeThinkerConfig, transformers.Qwen3OmniMoeThinkerForConditionalGeneration
        text = DECODER | EXPERTS | {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3], "mrope_interleaved": True}}
        tower |= {"num_position_embeddings": 16}
    audio = AUDIO | ({} if version == "2.5" else {"n_window_infer": 8, "conv_chunksize": 8})
    model = build(kinds[1], kinds[0](text_config=text, vision_config=tower, audio_config=audio, **ids), "sdpa")
    shown = _patches(kind, 96)
    if kind == "video":
        shown |= {"video_second_per_grid": torch.tensor([1.0])}
    return model, prompt(kind, 8 if kind == "video" else 4, shown, marks="")


def llama4(kind: str) -> tuple[PreTrainedModel, Prompt]:
    layers = ["chunked_attention"] * 3 + ["full_attention"]
    text = DECODER | {
        "attention_chunk_size": 8,
        "layer_types": layers,
        "no_rope_layers": [1, 1, 1, 0],
        "intermediate_size_mlp": 96,
    }
    tower = TOWER | {"image_size": 16, "intermediate_size": 128, "vision_output_dim": 64, "projector_input_dim": 64}
    config = transformers.Llama4Config(
        text_config=text | {"moe_layers": [1, 3], "num_local_experts": 4, "num_experts_per_tok": 1},
        vision_config=tower | {"projector_output_dim": 64},
        image_token_index=IMAGE,
    )
    model = build(transformers.Llama4ForConditionalGeneration, config, "sdpa")
    return model, prompt("image", 4, {"pixel_values": noise(1, 3, 16, 16)}, marks="")


def mllama(kind: str) -> tuple[PreTrainedModel, Prompt]:
    tower = TOWER | {"image_size": 16, "max_num_tiles": 2, "vision_output_dim": 64, "intermediate_layers_indices": [0]}
    tower |= {"num_global_layers": 1, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]], "attention_heads": 2}
    config = transformers.MllamaConfig(
        text_config=DECODER | {"cross_attention_layers": [1]}, vision_config=tower, image_token_index=IMAGE
    )
    model = build(transformers.MllamaForConditionalGeneration, config, "sdpa")
    return model, Prompt(torch.tensor([1, 5, 6, 7, 8, 9]), {"pixel_values": noise(1, 1, 2, 3, 16, 16)})


def paligemma() -> PreTrainedModel:
    tower = TOWER | {"image_size": 16, "vision_use_head": False, "projection_dim": 64}
    config = transformers.PaliGemmaConfig(
        text_config=DECODER | {"model_type": "gemma"}, vision_config=tower, image_token_index=IMAGE, projection_dim=64
    )
    return build(transformers.PaliGemmaForConditionalGeneration, config, "sdpa")


NEWER: dict[str, Callable[[str], tuple[PreTrainedModel, Prompt]]] = {
    "gemma4": gemma4,
    "gemma4_E4B": lambda kind: gemma4(kind, num_kv_shared_layers=2, hidden_size_per_layer_input=8),
    "gemma4_31B": lambda kind: gemma4(
        kind, use_bidirectional_attention="vision", attention_k_eq_v=True, num_global_key_value_heads=1
    ),
    "gemma4_31B_near": lambda kind: gemma4(kind, use_bidirectional_attention="vision", sliding_window=3),
    "gemma4_26B_A4B": lambda kind: gemma4(
        kind, use_bidirectional_attention="vision", enable_moe_block=True, **EXPERTS, top_k_experts=2
    ),
    "gemma4_unified": lambda kind: gemma4(kind, unified=True, use_bidirectional_attention="vision"),
    "gemma4_unified_near": lambda kind: gemma4(
        kind, unified=True, use_bidirectional_attention="vision", sliding_window=3
    ),
    "molmo2": molmo2,
    "hunyuan_vl": hunyuan,
    "ernie4_5_vl_moe": ernie,
    "qwen2_5_omni_thinker": omni,
    "qwen3_omni_moe_thinker": lambda kind: omni(kind, "3"),
    "llama4": llama4,
}
CLIPS = [name for name in NEWER if name.startswith(("gemma4", "ernie", "qwen", "molmo2"))]
SINGLE = {"ernie4_5_vl_moe", "llama4"}  # classes that compute in single precision within
