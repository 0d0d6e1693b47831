"""The networks of the reference pair: built from a recipe's shapes, and wrapped for training.

Training uses the same parts of every VLM: an encoder from pixels to prefix embeddings, a Llama and a head. The wrapped
model is unmodified; layers whose output is not used (the vision encoder's last one) are skipped.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
    VideoLlavaConfig,
    VideoLlavaForConditionalGeneration,
)

from crossdraft.models.eventgpt import EventGPTConfig, EventGPTForConditionalGeneration
from crossdraft_lab.train.reference.recipe import ReferenceRecipe, TextShape, VisionShape
from crossdraft_lab.train.reference.tokenizer import BOS, EOS, EVENT, IMAGE, PAD, VIDEO, token_id


@dataclass(frozen=True, slots=True)
class TrainableVLM(ABC):
    """A VLM's parts for the packed forward: a vision encoder, a Llama and its head."""

    model: VideoLlavaForConditionalGeneration | EventGPTForConditionalGeneration
    skipped_layers: ClassVar[int] = 0
    """Number of last layers of the vision encoder whose output is not used."""

    def __post_init__(self) -> None:
        # Over so few tokens plain products beat CPU flash attention, backwards threefold.
        self.vision_encoder.set_attn_implementation("eager")

    @property
    @abstractmethod
    def vision_encoder(self) -> CLIPVisionModel: ...

    @property
    def llama(self) -> LlamaModel:
        return self.model.model.language_model

    @property
    def head(self) -> nn.Linear:
        return self.model.lm_head

    def patches(self, pixels: Tensor) -> Tensor:
        """Patch features [clips, frames, patches+1, d] of normalised pixels [clips, frames, 3, h, w]."""
        encoder, (clips, frames) = self.vision_encoder, pixels.shape[:2]
        hidden = encoder.pre_layrnorm(encoder.embeddings(pixels.flatten(0, 1)))
        for layer in encoder.encoder.layers[: len(encoder.encoder.layers) - self.skipped_layers]:
            hidden = layer(hidden, None)
        return hidden.view(clips, frames, *hidden.shape[1:])

    @abstractmethod
    def visual_tokens(self, patches: Tensor) -> Tensor:
        """Convert patch features to the embeddings that replace the placeholders, [clips, n, text d]."""

    def prefix_embeds(self, prefix_ids: list[int], visual: Tensor) -> Tensor:
        """Embeddings of the text before the clip, then of the clip: [clips, P, d]."""
        text = self.llama.embed_tokens(torch.tensor([prefix_ids], device=visual.device))
        return torch.cat((text.expand(visual.shape[0], -1, -1), visual), 1)


@dataclass(frozen=True, slots=True)
class TrainableVideoLlava(TrainableVLM):
    """Video-LLaVA: features before the vision encoder's last layer, CLS kept, every frame's tokens in turn."""

    model: VideoLlavaForConditionalGeneration
    skipped_layers: ClassVar = 1

    @property
    def vision_encoder(self) -> CLIPVisionModel:
        return self.model.model.video_tower

    def visual_tokens(self, patches: Tensor) -> Tensor:
        return self.model.model.multi_modal_projector(patches).flatten(1, 2)


@dataclass(frozen=True, slots=True)
class TrainableEventGPT(TrainableVLM):
    """EventGPT: the vision encoder's last layer, projected, pooled over patches and over frames, then adapted."""

    model: EventGPTForConditionalGeneration

    @property
    def vision_encoder(self) -> CLIPVisionModel:
        return self.model.model.vision_tower

    def visual_tokens(self, patches: Tensor) -> Tensor:
        projected = self.model.model.multi_modal_projector(patches)
        pooled = torch.cat((projected.mean(2), projected.mean(1)), 1)
        return self.model.model.event_adaptor(pooled)


def to_bf16(model: nn.Module) -> None:
    """Convert a model to bf16, in place, for measurement and shipping."""
    model.to(torch.bfloat16)


def build_target(recipe: ReferenceRecipe, tokenizer: PreTrainedTokenizerFast) -> VideoLlavaForConditionalGeneration:
    """Build a seeded, untrained Video-LLaVA of the recipe's shape."""
    shape = recipe.target
    config = VideoLlavaConfig(
        vision_config=_vision_config(shape.vision),
        text_config=text_config(shape.text, tokenizer),
        image_token_index=token_id(tokenizer, IMAGE),
        video_token_index=token_id(tokenizer, VIDEO),
        image_seq_length=shape.vision.tokens - 1,
        video_seq_length=shape.vision.tokens * shape.frames,
        vision_feature_layer=-2,
        tie_word_embeddings=shape.text.tie_embeddings,
    )
    torch.manual_seed(recipe.seed)
    return VideoLlavaForConditionalGeneration(config)


def build_drafter(recipe: ReferenceRecipe, tokenizer: PreTrainedTokenizerFast) -> EventGPTForConditionalGeneration:
    """Build a seeded, untrained EventGPT of the recipe's shape."""
    shape = recipe.drafter
    config = EventGPTConfig(
        vision_config=_vision_config(shape.vision),
        text_config=text_config(shape.text, tokenizer),
        event_token_id=token_id(tokenizer, EVENT),
        num_event_frames=shape.frames,
        tie_word_embeddings=shape.text.tie_embeddings,
    )
    torch.manual_seed(recipe.seed)
    return EventGPTForConditionalGeneration(config)


def _vision_config(shape: VisionShape) -> CLIPVisionConfig:
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
    """Build a Llama config with the tokenizer's vocabulary."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        bos_token_id=token_id(tokenizer, BOS),
        eos_token_id=token_id(tokenizer, EOS),
        pad_token_id=token_id(tokenizer, PAD),
        tie_word_embeddings=shape.tie_embeddings,
    )
