"""Checkpoint folders of tiny random models, with text between a clip's frames: weights, tokenizer, processor file.

They share one tokenizer of single bytes, so that any of them may draft for any other.
"""

from functools import partial
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

SIDE, PATCH = 24, 4  # 6 x 6 patches, of which 2 x 2 become a token: nine a frame
SQUARE = {"height": SIDE, "width": SIDE}
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = (
    *("<s>", "</s>", "<pad>", "<image>", "<IMG_CONTEXT>", "<image_soft_token>", "<img>", "</img>", "<|im_start|>"),
    *("<|im_end|>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<start_of_image>"),
    *("<end_of_image>", "<start_of_turn>", "<end_of_turn>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>"),
    *("<|vision_end|>", "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>"),
    *("<|end_of_video|>", "<|user|>", "<|assistant|>", "[gMASK]", "<sop>", "<|endoftext|>"),
)
IDS = {token: len(BYTES) + index for index, token in enumerate(SPECIAL)}
TEXT = {
    "vocab_size": len(BYTES) + len(SPECIAL),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "bos_token_id": IDS["<s>"],
    "eos_token_id": IDS["</s>"],
    "pad_token_id": IDS["<pad>"],
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
CHAT = {  # as the checkpoints' own templates begin and end
    "internvl": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}"
    "{% if c.type == 'image' %}<IMG_CONTEXT>\n{% elif c.type == 'video' %}<video>\n{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "gemma3": "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{% for c in m.content %}"
    "{% if c.type == 'image' %}<start_of_image>{% elif c.type == 'text' %}{{ c.text | trim }}{% endif %}{% endfor %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "smolvlm": None,
    "qwen3_vl": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}"
    "{% if c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "qwen3_vl_moe": None,
    "qwen3_5": None,
    "glm4v": "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{% for c in m.content %}"
    "{% if c.type == 'video' %}<|begin_of_video|><|video|><|end_of_video|>"
    "{% elif c.type == 'image' %}<|begin_of_image|><|image|><|end_of_image|>{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "glm4v_moe": None,
    "glm46v": None,
}
SPACE_TIME = {"depth": 3, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": PATCH}
SPACE_TIME |= {"spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32}
DELTA = {f"linear_{one}": 4 for one in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
CLIP_PIXELS = {"shortest_edge": 64, "longest_edge": 8 * 25 * 25}  # eight frames of a square clip get 24 x 24 each


def internvl() -> PreTrainedModel:
    config = transformers.InternVLConfig(
        vision_config=VISION, text_config=TEXT | {"model_type": "qwen2"}, image_token_id=IDS["<IMG_CONTEXT>"]
    )
    return transformers.InternVLForConditionalGeneration(config)


def smolvlm() -> PreTrainedModel:
    config = transformers.SmolVLMConfig(
        vision_config=VISION, text_config=TEXT | {"model_type": "llama"}, image_token_id=IDS["<image>"], scale_factor=2
    )
    return transformers.SmolVLMForConditionalGeneration(config)


def gemma3() -> PreTrainedModel:
    types = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "head_dim": 16}
    config = transformers.Gemma3Config(
        vision_config=VISION | {"vision_use_head": False},
        text_config=TEXT | types,
        image_token_index=IDS["<image_soft_token>"],
        mm_tokens_per_image=9,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # it begins with zeros
    return model


def qwen3_vl(kind: str = "Qwen3VL", **more: object) -> PreTrainedModel:
    vision = SPACE_TIME | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    rope = ROPE | {"mrope_section": [2, 3, 3], "mrope_interleaved": True}
    config = getattr(transformers, f"{kind}Config")(
        vision_config=vision,
        text_config=TEXT | {"head_dim": 16, "rope_parameters": rope} | more,
        image_token_id=IDS["<|image_pad|>"],
        video_token_id=IDS["<|video_pad|>"],
        vision_start_token_id=IDS["<|vision_start|>"],
        vision_end_token_id=IDS["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


def glm4v(kind: str = "Glm4v", **more: object) -> PreTrainedModel:
    rope = ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    config = getattr(transformers, f"{kind}Config")(
        vision_config=SPACE_TIME | {"image_size": SIDE},
        text_config=TEXT | {"rope_parameters": rope} | more,
        image_token_id=IDS["<|image|>"],
        video_token_id=IDS["<|video|>"],
        tie_word_embeddings=False,
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


PATCHED = {
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": partial(qwen3_vl, "Qwen3VLMoe", num_experts=4, **EXPERTS),
    "qwen3_5": partial(qwen3_vl, "Qwen3_5", layer_types=["linear_attention", "full_attention"], **DELTA),
    "glm4v": glm4v,
    "glm4v_moe": partial(glm4v, "Glm4vMoe", n_routed_experts=4, first_k_dense_replace=1, **EXPERTS),
    "glm46v": partial(glm4v, "Glm46V"),
}
MODELS = PATCHED | {"internvl": internvl, "smolvlm": smolvlm, "gemma3": gemma3}
PROCESSORS = {
    name: partial(
        Qwen3VLVideoProcessor if name.startswith("qwen") else Glm4vVideoProcessor,
        fps=8,
        size=CLIP_PIXELS,
        patch_size=PATCH,
    )
    for name in PATCHED
} | {
    "internvl": lambda: GotOcr2ImageProcessorPil(size=SQUARE, crop_to_patches=False),
    "smolvlm": lambda: SmolVLMImageProcessorPil(size={"longest_edge": 48}, max_image_size={"longest_edge": SIDE}),
    "gemma3": lambda: Gemma3ImageProcessorPil(size=SQUARE),
}


def byte_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE({token: index for index, token in enumerate(BYTES)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **names)
    tokenizer.chat_template = template
    return tokenizer


def save_family(name: str, folder: Path, noise: float = 0.0) -> Path:
    """Save a model, each weight off by `noise`; its weights are large enough that what it sees decides what it says."""
    torch.manual_seed(0)
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3).add_(torch.randn(weight.shape, generator=generator), alpha=noise)
    model.generation_config.eos_token_id = IDS["</s>"]
    model.save_pretrained(folder)
    byte_tokenizer(CHAT[name]).save_pretrained(folder)
    PROCESSORS[name]().save_pretrained(folder)
    return folder
