"""The two networks of the reference pair, built from a recipe's shapes with the tokenizer's ids."""

import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    VideoLlavaConfig,
    VideoLlavaForConditionalGeneration,
)

from crossdraft.models.eventgpt import EventGPTConfig, EventGPTForConditionalGeneration
from crossdraft.train.reference.recipe import ReferenceRecipe, TextShape, VisionShape
from crossdraft.train.reference.tokenizer import EVENT, IMAGE, VIDEO


def vision_config(shape: VisionShape) -> CLIPVisionConfig:
    """A CLIP tower config."""
    return CLIPVisionConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        image_size=shape.image_size,
        patch_size=shape.patch_size,
        projection_dim=shape.hidden_size,
        hidden_act="quick_gelu",
    )


def text_config(shape: TextShape, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """A Llama config with the tokenizer's vocabulary."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=shape.tie_embeddings,
    )


def build_target(recipe: ReferenceRecipe, tokenizer: PreTrainedTokenizerFast) -> VideoLlavaForConditionalGeneration:
    """A freshly initialised Video-LLaVA of the recipe's shape, seeded."""
    shape = recipe.target
    per_frame = (shape.vision.image_size // shape.vision.patch_size) ** 2 + 1
    config = VideoLlavaConfig(
        vision_config=vision_config(shape.vision),
        text_config=text_config(shape.text, tokenizer),
        image_token_id=int(tokenizer.convert_tokens_to_ids(IMAGE)),
        video_token_id=int(tokenizer.convert_tokens_to_ids(VIDEO)),
        image_seq_length=per_frame - 1,
        video_seq_length=per_frame * shape.frames,
        vision_feature_layer=-2,
        tie_word_embeddings=shape.text.tie_embeddings,
    )
    torch.manual_seed(recipe.seed)
    return VideoLlavaForConditionalGeneration(config)


def build_drafter(recipe: ReferenceRecipe, tokenizer: PreTrainedTokenizerFast) -> EventGPTForConditionalGeneration:
    """A freshly initialised EventGPT of the recipe's shape, seeded."""
    shape = recipe.drafter
    config = EventGPTConfig(
        vision_config=vision_config(shape.vision),
        text_config=text_config(shape.text, tokenizer),
        event_token_id=int(tokenizer.convert_tokens_to_ids(EVENT)),
        num_event_frames=shape.frames,
        tie_word_embeddings=shape.text.tie_embeddings,
    )
    torch.manual_seed(recipe.seed)
    return EventGPTForConditionalGeneration(config)
