"""What training needs of a VLM, whichever it is: pixels in, prefix embeddings out, a Llama and a head.

A *seer* wraps an unmodified model. It skips what the features never pass through (the tower's last layer).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import CLIPVisionModel, LlamaModel, PreTrainedModel, VideoLlavaForConditionalGeneration

from crossdraft.models.eventgpt import EventGPTForConditionalGeneration


class Seer(Protocol):
    """A trainable VLM as the packed forward sees it."""

    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def tower(self) -> CLIPVisionModel: ...
    @property
    def llama(self) -> LlamaModel: ...
    @property
    def head(self) -> nn.Linear: ...

    def patches(self, pixels: Tensor) -> Tensor:
        """Tower features [clips, frames, patches+1, d] of normalised pixels [clips, frames, 3, h, w]."""
        ...

    def visual_tokens(self, patches: Tensor) -> Tensor:
        """Tower features -> the embeddings that replace the placeholders, [clips, n, text d]."""
        ...


@dataclass(frozen=True, slots=True)
class _Whole(ABC):
    """What both models have in the same place: a Llama and its head, beside a tower that each calls by another name."""

    model: VideoLlavaForConditionalGeneration | EventGPTForConditionalGeneration

    def __post_init__(self) -> None:
        # Over so few tokens plain products beat CPU flash attention, backwards threefold.
        self.tower.set_attn_implementation("eager")

    @property
    @abstractmethod
    def tower(self) -> CLIPVisionModel: ...

    @property
    def llama(self) -> LlamaModel:
        return self.model.model.language_model

    @property
    def head(self) -> nn.Linear:
        return self.model.lm_head


@dataclass(frozen=True, slots=True)
class VideoSeer(_Whole):
    """Video-LLaVA: features before the tower's last layer, CLS kept, every frame's tokens in turn."""

    model: VideoLlavaForConditionalGeneration

    @property
    def tower(self) -> CLIPVisionModel:
        return self.model.model.video_tower

    def patches(self, pixels: Tensor) -> Tensor:
        return tower_features(self.tower, pixels, layers=len(self.tower.encoder.layers) - 1)

    def visual_tokens(self, patches: Tensor) -> Tensor:
        return self.model.model.multi_modal_projector(patches).flatten(1, 2)


@dataclass(frozen=True, slots=True)
class EventSeer(_Whole):
    """EventGPT: the tower's last layer, projected, pooled over patches and over frames, then adapted."""

    model: EventGPTForConditionalGeneration

    @property
    def tower(self) -> CLIPVisionModel:
        return self.model.model.vision_tower

    def patches(self, pixels: Tensor) -> Tensor:
        return tower_features(self.tower, pixels, layers=len(self.tower.encoder.layers))

    def visual_tokens(self, patches: Tensor) -> Tensor:
        projected = self.model.model.multi_modal_projector(patches)
        pooled = torch.cat((projected.mean(2), projected.mean(1)), 1)
        return self.model.model.event_adaptor(pooled)


def tower_features(tower: CLIPVisionModel, pixels: Tensor, layers: int) -> Tensor:
    """[clips, frames, 3, h, w] -> [clips, frames, patches+1, d] after `layers` layers of the tower."""
    clips, frames = pixels.shape[:2]
    hidden = tower.pre_layrnorm(tower.embeddings(pixels.flatten(0, 1)))
    for layer in tower.encoder.layers[:layers]:
        hidden = layer(hidden, None)
    return hidden.view(clips, frames, *hidden.shape[1:])


def prefix_embeds(seer: Seer, prefix_ids: Tensor, visual: Tensor) -> Tensor:
    """Text in front of the clip, then the clip: [clips, P, d]."""
    text = seer.llama.embed_tokens(prefix_ids)
    return torch.cat((text.expand(visual.shape[0], -1, -1), visual), 1)
