"""Layouts of the hub's checkpoints on disk: names of tensors, configuration and settings, for any size.

- Video-LLaVA as `LanguageBind/Video-LLaVA-7B-hf`, saved by transformers 4.42: `language_model.model.*`,
  `{video,image}_tower.vision_model.*`, `multi_modal_projector.*`.
- EventGPT as released, saved by transformers 4.37: see `models.eventgpt.layout`. It has to be converted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import CLIPVisionConfig, LlamaConfig, PretrainedConfig, VideoLlavaConfig

from crossdraft.models.eventgpt import EventGPTConfig
from crossdraft.models.eventgpt.layout import official_name
from crossdraft_lab.bench.scale_models import DRAFTERS, FRAMES, IMAGE, TARGETS, VIDEO
from crossdraft_lab.bench.scale_tokenizer import PAD, UNK, llama_tokenizer, write_json_file, write_tokenizer

TINY = 480  # ordinary tokens of the tiny checkpoints
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]  # of OpenAI's CLIP
VIDEO_LLAVA_NAMES = (  # ours in transformers 5 -> the hub's
    ("model.language_model.", "language_model.model."),
    ("model.video_tower.", "video_tower.vision_model."),
    ("model.image_tower.", "image_tower.vision_model."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head.", "language_model.lm_head."),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint's model, and how it lies on disk.

    Args:
        config: the model, as the classes of today build it.
        rename: from a tensor's name in that model to its name on disk.
        write_settings: writes everything but the weights into a folder.
        shard: most bytes of one weight file, as the hub's.
    """

    config: PretrainedConfig
    rename: Callable[[str], str]
    write_settings: Callable[[Path], None]
    shard: int


def _vision(side: int) -> CLIPVisionConfig:
    """One layer more than is read; heads of 64, as the converter expects."""
    return CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=1,
        image_size=side,
        patch_size=14,
        projection_dim=32,
    )


def _text(vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )


def _small_video_llava() -> VideoLlavaConfig:
    """0.26 B parameters: a drafter's language model under the vision encoders of the 0.5B target."""
    drafter, target = DRAFTERS["small"](), TARGETS["0.5b"]()
    text = LlamaConfig(**(drafter.text_config.to_dict() | {"vocab_size": target.text_config.vocab_size}))
    return VideoLlavaConfig(
        vision_config=drafter.vision_config, text_config=text, image_token_index=IMAGE, video_token_index=VIDEO
    )


def _tiny_video_llava() -> VideoLlavaConfig:
    return VideoLlavaConfig(
        vision_config=_vision(28), text_config=_text(512), image_token_index=TINY, video_token_index=TINY + 1
    )


def _tiny_eventgpt() -> EventGPTConfig:
    return EventGPTConfig(vision_config=_vision(28), text_config=_text(TINY + 1), event_token_id=TINY)


SHAPES: Mapping[str, Callable[[], Any]] = {
    "video-llava-7b": TARGETS["video-llava-7b"],
    "video-llava-0.5b": TARGETS["0.5b"],
    "video-llava-small": _small_video_llava,
    "video-llava-tiny": _tiny_video_llava,
    "eventgpt-7b": DRAFTERS["eventgpt-7b"],
    "eventgpt-small": DRAFTERS["small"],
    "eventgpt-tiny": _tiny_eventgpt,
}


def layout_of(name: str) -> Layout:
    """The layout of one of `SHAPES`; a tiny one is cut into several shards all the same."""
    config = SHAPES[name]()
    shard = 200_000 if name.endswith("tiny") else 5_000_000_000
    if config.model_type == "eventgpt":
        # What is stored is the official checkpoint, which has no row for the placeholder.
        config.text_config.vocab_size = config.event_token_id
        config.event_token_id -= 1
        return Layout(config, official_name, lambda folder: _write_eventgpt(folder, config), shard)
    return Layout(config, _video_llava_name, lambda folder: _write_video_llava(folder, config), shard)


def _video_llava_name(name: str) -> str:
    return next(theirs + name.removeprefix(ours) for ours, theirs in VIDEO_LLAVA_NAMES if name.startswith(ours))


def _write_video_llava(folder: Path, config: Any) -> None:
    first, side, patch = config.image_token_id, config.vision_config.image_size, config.vision_config.patch_size
    patches = (side // patch) ** 2
    tokenizer = llama_tokenizer(first, ["<image>", "<video>", PAD])
    write_tokenizer(folder, tokenizer, processor="VideoLlavaProcessor")
    text = _llama_fields(config.text_config) | {"_name_or_path": "lmsys/vicuna-7b-v1.5", "model_type": "llama"}
    vision = config.vision_config
    clip = ("hidden_size", "image_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size")
    found: dict[str, object] = {
        "architectures": ["VideoLlavaForConditionalGeneration"],
        "ignore_index": -100,
        "image_seq_length": patches,
        "image_token_index": first,
        "model_type": "video_llava",
        "pad_token_id": first + 2,
        "projector_hidden_act": "gelu",
        "text_config": text | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"},
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.0",
        "video_seq_length": FRAMES * (patches + 1),
        "video_token_index": first + 1,
        "vision_config": {key: getattr(vision, key) for key in clip}
        | {"model_type": "clip_vision_model", "projection_dim": vision.projection_dim},
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }
    write_json_file(folder / "config.json", found)
    _write_generation(folder, first + 2, "4.42.0")
    size: dict[str, object] = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    steps = ("do_center_crop", "do_convert_rgb", "do_normalize", "do_rescale", "do_resize")
    frames: dict[str, object] = dict.fromkeys(steps, True) | size | {"image_mean": MEAN, "image_std": STD}
    frames |= {"resample": 3, "rescale_factor": 1 / 255, "image_processor_type": "VideoLlavaImageProcessor"}
    write_json_file(folder / "preprocessor_config.json", frames | {"processor_class": "VideoLlavaProcessor"})
    write_json_file(folder / "processor_config.json", {"processor_class": "VideoLlavaProcessor"})


def _write_eventgpt(folder: Path, config: EventGPTConfig) -> None:
    text = config.text_config
    write_tokenizer(folder, llama_tokenizer(text.vocab_size), pad=UNK)
    found: dict[str, object] = _llama_fields(text) | {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["EventChatModel"],
        "event_feature_adaptor": True,
        "mm_use_im_patch_token": False,
        "mm_use_im_start_end": False,
        "mm_visual_tower": "openai/clip-vit-large-patch14-336",
        "model_type": "EventChat_llama",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.37.2",
    }
    write_json_file(folder / "config.json", found)
    _write_generation(folder, 0, "4.37.2")


def _llama_fields(text: LlamaConfig) -> dict[str, object]:
    """Vicuna's configuration, of this size."""
    sizes = (
        "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
        "num_key_value_heads", "vocab_size",
    )  # fmt: skip
    return {name: getattr(text, name) for name in sizes} | {
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
    }


def _write_generation(folder: Path, pad: int, version: str) -> None:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": pad}
    write_json_file(
        folder / "generation_config.json", {"_from_model_config": True, **ids, "transformers_version": version}
    )
