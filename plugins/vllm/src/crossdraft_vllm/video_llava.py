# pyright: basic, reportMissingImports=false
"""Video-LLaVA for vLLM 0.32, out of tree: vLLM has its parts (CLIP, Llama), not the model.

Imported in vLLM's environment alone. Clips are preprocessed by our own `video.preprocess`, so that vLLM sees the pixels
that every other contestant sees, and no torchvision is needed. Only video is served.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BatchFeature
from vllm.model_executor.layers.activation import get_act_fn
from vllm.model_executor.models.clip import CLIPVisionModel
from vllm.model_executor.models.interfaces import SupportsEagle3, SupportsMultiModal, SupportsPP
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, init_vllm_registered_model, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    PromptReplacement,
)

from crossdraft.video.clip import DEFAULT_FRAMES
from crossdraft.video.preprocess import preprocess
from crossdraft.video.spec import FrameSpec

PIXELS = "pixel_values_videos"
TOWER = ("embeddings.", "encoder.", "pre_layrnorm.", "post_layernorm.")
WEIGHTS = {f"video_tower.{part}": f"video_tower.vision_model.{part}" for part in TOWER}  # Hugging Face's name -> vLLM's


def tokens_per_frame(config: Any) -> int:
    """Number of tokens of a frame: its patches and the class token, which Video-LLaVA keeps."""
    vision = config.vision_config
    return (vision.image_size // vision.patch_size) ** 2 + 1


class Info(BaseProcessingInfo):
    """Properties of a model's inputs that vLLM asks for."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Allow one clip for each prompt."""
        return {"video": 1}

    def get_supported_mm_processor_kwargs(self) -> Mapping[str, Any]:
        """Return no arguments: there is no Hugging Face processor, which would need torchvision."""
        return {}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the number of visual tokens of a clip of the usual length."""
        return {"video": DEFAULT_FRAMES * tokens_per_frame(self.get_hf_config())}


class DummyInputs(BaseDummyInputsBuilder[Info]):
    """Dummy inputs with which vLLM profiles its memory."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return "<video>" * mm_counts.get("video", 0)

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Any]) -> Any:
        side = self.info.get_hf_config().vision_config.image_size
        videos = self._get_dummy_videos(
            width=side,
            height=side,
            num_frames=DEFAULT_FRAMES,
            num_videos=mm_counts.get("video", 0),
            overrides=mm_options.get("video"),
        )
        return {"video": videos}


class Processor(BaseMultiModalProcessor[Info]):
    """Preprocesses each clip to pixels, and repeats its placeholder once for each visual token."""

    def _call_hf_processor(self, hf_data: Mapping[str, Any], hf_kwargs: Mapping[str, Any]) -> BatchFeature:
        spec = FrameSpec.from_pretrained(self.info.model_id)
        clips = [preprocess(torch.as_tensor(clip), spec) for clip in hf_data.get("videos", [])]
        return BatchFeature({PIXELS: torch.stack(clips)} if clips else {})

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> Mapping[str, Any]:
        return {PIXELS: MultiModalFieldConfig.batched("video")}

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Sequence[Any]:
        config = self.info.get_hf_config()

        def replacement(index: int) -> list[int]:
            frames = len(out_mm_kwargs["video"][index][PIXELS].data)
            return [config.video_token_id] * (frames * tokens_per_frame(config))

        return [PromptReplacement(modality="video", target=[config.video_token_id], replacement=replacement)]


class Projector(nn.Module):
    """Projects visual features [..., v] to embeddings [..., h]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        wide, bias = config.text_config.hidden_size, config.multimodal_projector_bias
        self.linear_1 = nn.Linear(config.vision_config.hidden_size, wide, bias=bias)
        self.act = get_act_fn(config.projector_hidden_act)
        self.linear_2 = nn.Linear(wide, wide, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear_2(self.act(self.linear_1(features)))


@MULTIMODAL_REGISTRY.register_processor(Processor, info=Info, dummy_inputs=DummyInputs)
class VideoLlavaForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsPP, SupportsEagle3):
    """Video-LLaVA: vLLM's CLIP up to the layer that is read, a projector, and vLLM's Llama."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}  # noqa: RUF012 - vLLM reads it so
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix=WEIGHTS)

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """Return the text that stands for a clip in a chat's prompt."""
        return "<video>" if modality == "video" else None

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config = self.config = vllm_config.model_config.hf_config  # a head of vLLM's looks into it
        with self._mark_tower_model(vllm_config, "video"):
            layer = config.vision_feature_layer
            depth = config.vision_config.num_hidden_layers + layer + 1 if layer < 0 else layer
            self.video_tower = CLIPVisionModel(
                config.vision_config,
                quant_config=vllm_config.quant_config,
                num_hidden_layers_override=depth,
                require_post_norm=False,
                prefix=maybe_prefix(prefix, "video_tower"),
            )
            self.multi_modal_projector = Projector(config)
        with self._mark_language_model(vllm_config):
            self.language_model = init_vllm_registered_model(
                vllm_config=vllm_config, hf_config=config.text_config, prefix=maybe_prefix(prefix, "language_model")
            )
        self.make_empty_intermediate_tensors = self.language_model.model.make_empty_intermediate_tensors

    def embed_multimodal(self, **features: Any) -> list[Tensor]:
        """Compute the embeddings [F * P, h] of each clip."""
        clips = features.get(PIXELS)
        seen = [] if clips is None else [self.video_tower(clip, feature_select_strategy="full") for clip in clips]
        return [self.multi_modal_projector(frames).flatten(0, 1) for frames in seen]

    def forward(
        self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None, **unused: Any
    ) -> Any:
        embeds = None if intermediate_tensors is not None else inputs_embeds
        return self.language_model.model(input_ids, positions, intermediate_tensors, inputs_embeds=embeds)

    def compute_logits(self, hidden_states: Tensor) -> Any:
        """The logits of the language model's head."""
        return self.language_model.compute_logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's weights, except the image tower's: only video is served."""
        loader = AutoWeightsLoader(self, ignore_unexpected_prefixes=["image_tower."])
        return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)
