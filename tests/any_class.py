"""Checkpoint folders of tiny random models of classes that are not in the table of families, with their processors.

A configuration is the class's own default, with little pictures, shrunk. Where an image processor needs torchvision,
the folder has none, and inputs are made by hand.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

from crossdraft.checkpoints.shrunk import random_model, shrunk
from tests.tiny_families import BYTES, SPECIAL, byte_tokenizer

EXTRA = ("<|im_patch|>", "<global>", "<row>")
TOKENS = {token: len(BYTES) + number for number, token in enumerate((*SPECIAL, *EXTRA))}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% for c in m.content %}{% if c.type == 'image' %}IMAGE"
    "{% elif c.type == 'video' %}VIDEO{% else %}{{ c.text }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
LITTLE = {"image_size": 16, "patch_size": 4, "num_position_embeddings": 16}


def merged(values: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    """Values with others in their place, part by part."""
    for name, value in edits.items():
        inner = isinstance(value, dict) and isinstance(values.get(name), dict) and not name.startswith("rope")
        values[name] = merged(values[name], value) if inner else value
    return values


def config_of(
    kind: str, edits: dict[str, Any], image: str = "<image>", video: str = "<|video_pad|>"
) -> PretrainedConfig:
    """A class's own configuration, with little pictures, shrunk; its ids are the tokenizer's."""
    config = CONFIG_MAPPING[kind]
    values = config().to_dict()
    vision = values.get("vision_config") or {}
    vision |= {name: value for name, value in LITTLE.items() if isinstance(vision.get(name), int)}
    values = shrunk(config.from_dict(merged(values, edits))).to_dict()
    tokens = {
        "image_token": image, "video_token": video, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>",
        "image_start_token": "<|begin_of_image|>", "image_end_token": "<|end_of_image|>",
        "video_start_token": "<|begin_of_video|>", "video_end_token": "<|end_of_video|>",
    }  # fmt: skip
    named = {f"{name}_{end}": TOKENS[token] for name, token in tokens.items() for end in ("id", "index")}
    for part in (values, values.get("text_config") or {}):
        small = part.get("vocab_size")
        for key in [key for key in part if "vocab_size" in key and part[key] == small]:
            part[key] = len(TOKENS) + len(BYTES)
        part |= {name: value for name, value in named.items() if name in part}
    return config.from_dict(values)


def save_class(kind: str, folder: Path, edits: dict[str, Any], processor: dict[str, Any] | None, **tokens: str) -> Path:
    """Save a random model, its tokenizer, and the settings of its processor."""
    config = config_of(kind, edits, **tokens)
    model = random_model(getattr(transformers, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[kind]), config, torch.float32)
    model.generation_config.eos_token_id = TOKENS["</s>"]
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer(None)
    tokenizer.add_special_tokens({"additional_special_tokens": list(EXTRA)})
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("IMAGE", "<image>"))
    if processor is not None:
        (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder
