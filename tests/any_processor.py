"""Checkpoint folders of classes outside the table of families, each with its real processor, made small.

A processor is built as its class says: its image and video processors with little pictures, and a tokenizer of single
bytes with the special tokens that the class asks for. `save_pretrained` writes the files, as a checkpoint's are.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, ProcessorMixin
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available

from crossdraft.checkpoints.shrunk import random_model
from crossdraft.text_model import PLAIN
from tests.any_class import config_of
from tests.every_class import EDITS
from tests.tiny_families import byte_tokenizer

QUESTION, RATE = "What is it?", 2
FRAMES = np.random.default_rng(0).integers(0, 256, (5, 40, 56, 3), dtype=np.uint8)  # four of a clip, and an image
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% for c in m.content %}{% if c.type == 'image' %}IMAGE"
    "{% elif c.type == 'video' %}VIDEO{% else %}{{ c.text }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SIDE = {"height": 16, "width": 16}
BUDGET = {"shortest_edge": 64, "longest_edge": 16 * 16 * 4}  # pixels
PATCHES = {"patch_size": 4, "size": BUDGET}
QWEN = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
QWEN |= {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}
GLM = {"image_token": "<|image|>", "video_token": "<|video|>"}
GLM |= {
    f"{what}_{end}_token": f"<|{one}_of_{what}|>"
    for what in ("image", "video")
    for end, one in (("start", "begin"), ("end", "end"))
}
BEGUN = tuple(f"<|begin_of_{what}|><|{what}|><|end_of_{what}|>" for what in ("image", "video"))
HEARS = {"nemotron_h_omni": "ParakeetFeatureExtractor"}  # which no table of transformers names
VISION = "<|vision_start|>{}<|vision_end|>"


@dataclass(frozen=True)
class Case:
    """How a class's processor is made small.

    Args:
        tokens: the special tokens that the class names, by the tokenizer's and the configuration's key.
        image, video: settings of the image and the video processor.
        own: settings of the processor itself.
        more: further special tokens.
        marks: what the chat template writes for an image and for a clip; default: their tokens.
        edits: changes of the configuration, besides those of `EDITS`.
        lists: special tokens whose ids the configuration has in a list.
        kind: the processor's class, where no table of transformers names it.
        like: the type whose image and video processors are taken, where no table names any.
    """

    tokens: Mapping[str, str] = field(default_factory=lambda: {"image_token": "<image>"})
    image: Mapping[str, Any] = field(default_factory=dict)
    video: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    edits: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    kind: str = ""
    like: str = ""


LLAVA = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
CROPS = {"size": {"shortest_edge": 16}, "crop_size": SIDE}
SPACE_TIME = Case(QWEN, PATCHES, PATCHES, marks=(VISION.format("<|image_pad|>"), VISION.format("<|video_pad|>")))
PIXTRAL = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
CASES: dict[str, Case] = {
    "aria": Case(
        own={"size_conversion": {980: 4}},
        edits={"vision_config": {"image_size": 980, "patch_size": 14}, "projector_patch_to_query_dict": {4900: 4}},
    ),
    "aya_vision": Case(
        {"image_token": "<|IMG_PATCH|>"},
        {"size": SIDE, "crop_to_patches": True},
        own={"patch_size": 4, "img_size": 16, "downsample_factor": 2},
        more=("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL"),
        marks=("<image>",),
    ),
    "cohere2_vision": Case(
        {
            "image_token": "<|IMG_PATCH|>",
            "boi_token": "<|START_OF_IMG|>",
            "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
        {"size": SIDE, "patch_size": 2},  # as many a side of a tile, whatever its name
    ),
    "cohere_compass": Case(
        {
            "image_token": "<|IMAGE_PAD|>",
            "video_token": "<|VIDEO_PAD|>",
            "vision_start_token": "<|VISION_START|>",
            "vision_end_token": "<|VISION_END|>",
        },
        PATCHES,
        PATCHES,
        marks=("<|VISION_START|><|IMAGE_PAD|><|VISION_END|>", "<|VISION_START|><|VIDEO_PAD|><|VISION_END|>"),
    ),
    "cosmos3_edge": SPACE_TIME,
    "cosmos3_omni": Case(QWEN, PATCHES, PATCHES, marks=SPACE_TIME.marks, kind="Qwen3VLProcessor"),
    "deepseek_ocr2": Case(
        edits={
            "vision_config": {
                "encoder_config": {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
            }
        }
    ),
    "deepseek_vl": Case(image={"size": SIDE, "min_size": 4}, own={"num_image_tokens": 16}),
    "deepseek_vl_hybrid": Case(
        image={"size": SIDE, "min_size": 4, "high_res_size": {"height": 64, "width": 64}}, own={"num_image_tokens": 16}
    ),
    "exaone4_5": SPACE_TIME,
    "got_ocr2": Case(
        {"image_token": "<imgpad>"},
        {"size": {"height": 256, "width": 256}},
        marks=("<img><imgpad></img>",),
        edits={"vision_config": {"image_size": 256}},
    ),
    "glm_ocr": Case(GLM, PATCHES, PATCHES, marks=BEGUN, kind="Glm46VProcessor", like="glm46v"),
    "glmga": Case(GLM, PATCHES, PATCHES, marks=BEGUN, kind="Glm46VProcessor"),
    "granite_docling": Case(image={"size": SIDE}, own={"image_seq_len": 1}, more=("<fake_token_around_image>",)),
    "hyperclovax_vision_v2": SPACE_TIME,
    "idefics2": Case(
        {"image_token": "<image>", "image_boundary_token": "<fake_token_around_image>"},
        image={"size": {"shortest_edge": 8, "longest_edge": 16}},
        own={"image_seq_len": 64},
    ),
    "idefics3": Case(
        image={"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}, own={"image_seq_len": 4}
    ),
    "janus": Case(
        {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"},
        {"size": SIDE, "min_size": 4},
        own={"num_image_tokens": 16},
    ),
    "kimi_k25": Case(
        {"image_token": "<|media_pad|>", "video_token": "<|kimi_k25_video_placeholder|>"},
        {"patch_size": 4, "max_patches": 16},
        {"patch_size": 4, "max_patches": 16},
    ),
    "lighton_ocr": Case(
        PIXTRAL, {"size": {"longest_edge": 32}, "patch_size": 4}, own={"patch_size": 4, "spatial_merge_size": 2}
    ),
    "llava": Case(image=CROPS, own=LLAVA),
    "llava_next": Case(image=CROPS | {"image_grid_pinpoints": [[16, 16], [16, 32]]}, own=LLAVA),
    "mistral3": Case(
        PIXTRAL, {"size": {"longest_edge": 32}, "patch_size": 4}, own={"patch_size": 4, "spatial_merge_size": 2}
    ),
    "muse_glimmer": Case(
        {
            "image_token": "<|patch|>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "video_token": "<|video|>",
        },
        {"patch_size": 4, "max_image_tokens": 16},
        {"patch_size": 4, "max_video_frame_tokens": 4},
        more=("<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>"),
    ),
    "ovis2": Case(
        {"image_token": "<IMG_ATOM>"},
        {"size": SIDE},
        own={"image_seq_length": 16},
        more=("<image>",),
        marks=("<image>",),
        lists={"visual_indicator_token": tuple(f"<IMG_{what}>" for what in ("START", "GRID", "COL", "ROW", "END"))},
    ),
    "paddleocr_vl": Case(QWEN, PATCHES, marks=SPACE_TIME.marks),
    "qianfan_ocr": Case(
        {
            "image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
        },
        {"size": SIDE, "crop_to_patches": True},
        own={"image_seq_length": 4},
        marks=("<image>",),
        edits={"vision_config": {"image_size": [16, 16], "patch_size": [4, 4]}},
    ),
    "step3p7": Case({"image_token": "<im_patch>"}, {"size": SIDE, "vision_patch_size": 4, "patch_size": 16}),
    "video_llama_3": SPACE_TIME,
    "vipllava": Case(image=CROPS, own=LLAVA),
    "granite4_vision": Case(
        image=CROPS | {"image_grid_pinpoints": [[16, 16], [16, 32]]},
        own=LLAVA | {"downsample_rate": "1/2"},
        edits={"image_grid_pinpoints": [[16, 16], [16, 32]]},
    ),
    "phi4_multimodal": Case(
        {"image_token": "<|image|>", "audio_token": "<|audio|>"}, {"size": SIDE, "patch_size": 4, "dynamic_hd": 4}
    ),
    "fuyu": Case(
        {"image_token": "|SPEAKER|"},
        {"patch_size": {"height": 4, "width": 4}, "size": SIDE},
        more=("|NEWLINE|", "<0x00>", "<0x04>", "<0x06>"),
    ),
}
CASES["muse_spark"] = CASES["muse_glimmer"]
SOFT = {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2}
GEMMA = {f"{name}_token": f"<|{name}|>" for name in ("image", "audio", "boi", "eoi", "boa", "eoa")}
CASES |= {
    "gemma4": Case(GEMMA | {"video_token": "<|video|>"}, SOFT, SOFT, edits={"vision_config": SOFT}),
    "gemma4_unified": Case(GEMMA | {"video_token": "<|video|>"}, SOFT, SOFT, edits={"vision_config": SOFT}),
    "hunyuan_vl": Case(
        {"image_token": "<image>", "image_start_token": "<img>", "image_end_token": "</img>"},
        {"patch_size": 4, "size": BUDGET},
        marks=("<img><image></img>",),
        edits={
            "text_config": {
                "head_dim": 16,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2, 2]},
            }
        },
    ),
    "molmo2": Case(
        {
            "image_token": "<|image|>",
            "video_token": "<|video|>",
            "image_patch": "<im_patch>",
            "image_start_token": "<im_start>",
            "image_end_token": "<im_end>",
            "low_res_image_start_token": "<low_res_im_start>",
            "frame_start_token": "<frame_start>",
            "frame_end_token": "<frame_end>",
        },
        {"size": SIDE, "patch_size": 4, "max_crops": 2, "overlap_margins": [1, 1]},
        {"size": SIDE, "patch_size": 4},
        more=("<im_col>", "<im_low>"),
        edits={
            "text_config": {"additional_vocab_size": 10},
            "vision_config": {"image_size": [16, 16]},
            "adapter_config": {"text_hidden_size": 4096},  # the class's own default does not fit
        },
    ),
    "nemotron_h_omni": Case(
        {"image_token": "<image>", "video_token": "<video>", "audio_token": "<so_embedding>"},
        {"patch_size": 4, "min_num_patches": 4, "max_num_patches": 16},
        {"patch_size": 4, "video_target_num_patches": 16, "norm_mean": [0.5] * 3, "norm_std": [0.5] * 3},
        more=("<img>", "</img>", "<so_start>", "<so_end>"),
    ),
    "gemma3n": Case(GEMMA, {"size": {"height": 64, "width": 64}}, own={"image_seq_length": 256}),
    "fast_vlm": Case(
        image={"size": {"shortest_edge": 128}, "crop_size": {"height": 128, "width": 128}},
        own={"patch_size": 64, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0},
        kind="LlavaProcessor",
        like="llava",
    ),
    "perception_lm": Case(
        {"image_token": "<|image|>", "video_token": "<|video|>"},
        {"tile_size": 28, "max_num_tiles": 2, "size": {"height": 28, "width": 28}},
        {"size": {"height": 28, "width": 28}},
        own={"patch_size": 14, "pooling_ratio": 1},
        edits={
            "vision_config": {
                "architecture": "vit_pe_core_large_patch14_336",
                "model_args": {
                    "embed_dim": 64,
                    "img_size": [28, 28],
                    "depth": 2,
                    "global_pool": "",
                    "init_values": 0.1,
                    "use_post_transformer_norm": False,
                    "ref_feat_shape": [2, 2],
                },
            }
        },
    ),
}


def processor_of(kind: str, case: Case) -> ProcessorMixin:
    """A class's processor, small."""

    def part(table: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
        name = table[case.like or kind]
        if isinstance(name, dict):
            name = name["torchvision" if is_torchvision_available() else "pil"]
        return getattr(transformers, name)(**settings)

    chosen: Any = getattr(transformers, case.kind or PROCESSOR_MAPPING_NAMES[kind])
    parts: dict[str, Any] = {
        "tokenizer": tokenizer_of(case),
        "image_processor": part(IMAGE_PROCESSOR_MAPPING_NAMES, case.image),
    }
    if "video_processor" in chosen.get_attributes():
        parts["video_processor"] = part(VIDEO_PROCESSOR_MAPPING_NAMES, case.video)
    if "feature_extractor" in chosen.get_attributes():
        parts["feature_extractor"] = part(HEARS | FEATURE_EXTRACTOR_MAPPING_NAMES, {})
    if "audio_processor" in chosen.get_attributes():
        parts["audio_processor"] = part(FEATURE_EXTRACTOR_MAPPING_NAMES, {})
    return chosen(**parts, **case.own, chat_template=template_of(case))


def template_of(case: Case) -> str:
    """A chat template that writes a class's tokens for an image and for a clip."""
    tokens = [case.tokens.get(f"{name}_token", "") for name in ("image", "video")]
    image, video = (*case.marks, *tokens[len(case.marks) :])
    return TEMPLATE.replace("IMAGE", image).replace("VIDEO", video)


def tokenizer_of(case: Case) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, with a class's special tokens."""
    core = byte_tokenizer(None).backend_tokenizer
    core.add_special_tokens(
        [*case.tokens.values(), *case.more, *(token for some in case.lists.values() for token in some)]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, extra_special_tokens=dict(case.tokens), **names)


def save_kind(kind: str, folder: Path) -> Path:
    """Save a random model of a class, with its processor."""
    case = CASES[kind]
    processor_of(kind, case).save_pretrained(folder)
    save_model(kind, case, folder)
    return folder


def save_model(kind: str, case: Case, folder: Path) -> None:
    """Save a random model of a class, whose ids are those of its tokenizer."""
    vocabulary: dict[str, int] = tokenizer_of(case).get_vocab()
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **case.tokens}
    ids: dict[str, Any] = {name: vocabulary[token] for name, token in tokens.items()}
    ids |= {name: [vocabulary[token] for token in some] for name, some in case.lists.items()}
    config = config_of(kind, {**EDITS.get(kind, {}), **case.edits}, ids, len(vocabulary))
    model = random_model(getattr(transformers, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[kind]), config, torch.float32)
    if kind == "fast_vlm":  # whose tower begins with weights that pass nothing on
        for weight in model.base_model.vision_tower.parameters():
            if weight.dim() == 4:
                torch.nn.init.kaiming_normal_(weight)
    model.generation_config.eos_token_id = vocabulary["</s>"]
    model.save_pretrained(folder)


def own_inputs(processor: Any, model: Any, shows: str) -> dict[str, Tensor]:
    """The class's own inputs, by its chat template; or by a call with the text, where that cannot be done."""
    from PIL import Image

    content: list[dict[str, Any]] = [{"type": "text", "text": QUESTION}]
    image, clip = Image.fromarray(FRAMES[4]), torch.from_numpy(FRAMES[:4]).movedim(-1, 1)
    times = {
        "total_num_frames": 4,
        "fps": RATE,
        "duration": 4 / RATE,
        "frames_indices": [0, 1, 2, 3],
        "height": 40,
        "width": 56,
    }
    given: dict[str, Any] = {}
    if shows == "image":
        content.insert(0, {"type": "image", "image": image})
    if shows == "clip":
        content.insert(0, {"type": "video", "video": clip})
        given = {"video_metadata": [times], "do_sample_frames": False, "return_metadata": True}
    if "mm_token_type_ids" in inspect.signature(inspect.unwrap(type(model).forward)).parameters:
        given["return_mm_token_type_ids"] = True
    messages = [{"role": "user", "content": content}]
    own = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
    template = {"chat_template": processor.chat_template or processor.tokenizer.chat_template}
    try:
        found = processor.apply_chat_template(messages, **template, **own, processor_kwargs=given)
    except (ValueError, TypeError):  # GOT-OCR takes no list of lists, and Fuyu keeps no chat template
        text = PLAIN.format(prompt=QUESTION)
        if template["chat_template"]:
            text = processor.apply_chat_template(messages, **template, tokenize=False, add_generation_prompt=True)
        shown = {"image": {"images": image}, "clip": {"videos": clip}}.get(shows)
        made = processor if shown else processor.tokenizer
        found = made(text=text, **(shown or {}), return_tensors="pt", **(given if shown else {}))
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def compared(own: Mapping[str, Tensor], ids: Tensor, features: Mapping[str, Tensor]) -> str:
    """What differs between Hugging Face's inputs and ours."""
    if own["input_ids"][0].tolist() != ids.tolist():
        return "ids differ"
    left = {name for name in own if features or "pixel" in name} - {"input_ids", "attention_mask", *features}
    if left:
        return f"{min(left)} differs: it is not ours"
    wrong = [name for name, value in features.items() if name not in own or not torch.equal(own[name], value)]
    return f"{wrong[0]} differs" if wrong else ""
