"""EventGPT (Liu et al., CVPR 2025) as a `transformers` model made of stock CLIP and Llama.

    frames [B, T, 3, s, s] --CLIP--> [B, T, P+1, d] --projector--> [B, T, P+1, h]
        mean over the P+1 tokens of a frame -> T temporal tokens    |
        mean over the T frames              -> P+1 spatial tokens   | --adaptor--> [B, T+P+1, h]

The features replace the `event_token_id` placeholders of the prompt; from there on it is a Llama. The official code
applies the adaptor before the means. It is affine, so it commutes with them, and here T+P+1 rows pass through it
instead of T·(P+1).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, GenerationMixin, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, BaseModelOutputWithPooling, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt.configuration import EventGPTConfig


class EventGPTProjector(nn.Module):
    """Two linear layers with an activation between them, from the vision encoder's width to the language model's."""

    def __init__(self, config: EventGPTConfig) -> None:
        super().__init__()
        hidden = config.text_config.hidden_size
        self.linear_1 = nn.Linear(config.vision_config.hidden_size, hidden)
        self.act = ACT2FN[config.projector_hidden_act]
        self.linear_2 = nn.Linear(hidden, hidden)

    def forward(self, features: Tensor) -> Tensor:
        """Project features [..., d] to [..., h]."""
        return self.linear_2(self.act(self.linear_1(features)))


class EventGPTPreTrainedModel(PreTrainedModel):
    """The base class of every EventGPT class, as `transformers` requires it."""

    config: EventGPTConfig
    config_class = EventGPTConfig
    base_model_prefix = "model"
    input_modalities = ["video", "text"]
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True


class EventGPTModel(EventGPTPreTrainedModel):
    """Vision encoder, projector, adaptor and language model, without the head."""

    def __init__(self, config: EventGPTConfig) -> None:
        super().__init__(config)
        hidden = config.text_config.hidden_size
        self.vision_tower = AutoModel.from_config(config.vision_config)
        self.multi_modal_projector = EventGPTProjector(config)
        self.event_adaptor = nn.Linear(hidden, hidden)
        self.language_model = AutoModel.from_config(config.text_config)
        self.post_init()

    @can_return_tuple
    def get_video_features(self, pixel_values_videos: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Encode windows of event frames.

        The vision encoder's last layer is read with its class token and without the final norm, as in the official
        code.

        Args:
            pixel_values_videos: [B, T, 3, s, s] preprocessed event frames.

        Returns:
            `pooler_output` [B, T+P+1, h], features that replace the placeholders; `last_hidden_state` [B·T, P+1, d].
        """
        frames = pixel_values_videos.shape[1]
        hidden = self.vision_tower(pixel_values_videos.flatten(0, 1), return_dict=True, **kwargs).last_hidden_state
        projected = self.multi_modal_projector(hidden).unflatten(0, (-1, frames))
        pooled = torch.cat([projected.mean(dim=2), projected.mean(dim=1)], dim=1)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=self.event_adaptor(pooled))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values_videos: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        mm_encoder_outputs: Mapping[str, BaseModelOutputWithPooling] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Compute the hidden states of a prompt, or of its next piece.

        Args:
            input_ids: [B, L], each window as `config.event_seq_length` placeholders.
            pixel_values_videos: [B, T, 3, s, s] event frames, for the call that holds the placeholders.
            attention_mask: [B, past + L], or [B, 1, L, past + L] (bool under sdpa, True = attend).
            position_ids: [B, L]; counted on from the cache by default.
            past_key_values: any `transformers` cache.
            inputs_embeds: [B, L, h] in place of `input_ids`, for text without event features.
            mm_encoder_outputs: `{"video": get_video_features(...)}` in place of `pixel_values_videos`.

        Raises:
            CrossdraftError: contradicting inputs, or placeholders and features that do not match.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise CrossdraftError("Give EventGPT either input_ids or inputs_embeds.")
        encoded = (mm_encoder_outputs or {}).get("video")
        if encoded is not None and pixel_values_videos is not None:
            raise CrossdraftError("Give EventGPT either pixel_values_videos or mm_encoder_outputs, not both.")
        if pixel_values_videos is not None:
            encoded = self.get_video_features(pixel_values_videos, return_dict=True)
        embeds = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if encoded is not None:
            embeds = self._scatter_features(input_ids, embeds, encoded.pooler_output)
        return self.language_model(
            inputs_embeds=embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )

    def _scatter_features(self, input_ids: Tensor | None, embeds: Tensor, features: Tensor | None) -> Tensor:
        """Replace the placeholder rows of embeds [B, L, h] by features [N, n, h], in order."""
        if input_ids is None or features is None:
            raise CrossdraftError(
                "Event features are the `pooler_output` of get_video_features and need input_ids, not inputs_embeds, "
                "to tell where they belong."
            )
        placeholders = input_ids == self.config.event_token_id
        windows, length = features.shape[:2]
        if not torch.compiler.is_compiling():  # the check waits for the device, which a compiled graph cannot
            counts = placeholders.sum(dim=1)
            # A right total could still shift features from one row to the next, hence the check per row. A single
            # window is exempt: chunked prefill may send it in pieces.
            if counts.sum() != windows * length or (windows > 1 and (counts % length).any()):
                raise CrossdraftError(
                    f"The event placeholders of the prompt's rows, {counts.tolist()}, do not match {windows} window(s) "
                    f"of {length} event features; expand <event> to {length} tokens for every window."
                )
        return embeds.masked_scatter(placeholders.unsqueeze(-1), features.to(embeds.device, embeds.dtype))


class EventGPTForConditionalGeneration(EventGPTPreTrainedModel, GenerationMixin):
    """EventGPT with its head: the model that answers questions about an event window."""

    _tied_weights_keys = {"lm_head.weight": "model.language_model.embed_tokens.weight"}

    def __init__(self, config: EventGPTConfig) -> None:
        super().__init__(config)
        self.model = EventGPTModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values_videos: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        mm_encoder_outputs: Mapping[str, BaseModelOutputWithPooling] | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute the logits of a prompt, or of its next piece; arguments as in `EventGPTModel.forward`.

        Args:
            labels: [B, L] ids to predict, -100 at positions without one; gives the `loss`.
            logits_to_keep: number of last positions (0 = all), or a tensor of positions.
        """
        outputs = self.model(
            input_ids=input_ids,
            pixel_values_videos=pixel_values_videos,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            mm_encoder_outputs=mm_encoder_outputs,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.text_config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
