"""Checkpoint folders of tiny random models to which a clip is a row of images: weights, tokenizer, processor file.

They share one tokenizer of single bytes, so that any of them may draft for any other.
"""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

SIDE, PATCH = 24, 4  # 6 x 6 patches, of which 2 x 2 become a token: nine a frame
SQUARE = {"height": SIDE, "width": SIDE}
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = (
    *("<s>", "</s>", "<pad>", "<image>", "<IMG_CONTEXT>", "<image_soft_token>", "<img>", "</img>", "<|im_start|>"),
    *("<|im_end|>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<start_of_image>"),
    *("<end_of_image>", "<start_of_turn>", "<end_of_turn>"),
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
}


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


MODELS = {"internvl": internvl, "smolvlm": smolvlm, "gemma3": gemma3}
PROCESSORS = {
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
