"""A question about a clip as the tensors that a `transformers` video model's forward takes.

Adding a model is one entry in FAMILIES: how it writes a prompt, how it wants frames, what it makes of them, and
how many placeholders stand for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from crossdraft.errors import CrossdraftError
from crossdraft.video.preprocess import patchify, preprocess
from crossdraft.video.spec import FrameSpec, PixelBudget

Features = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Family:
    """What differs between video models.

    Args:
        model: name of the class in `transformers`.
        prompt: used where the tokenizer has no chat template for video; "{question}" is filled in.
        placeholder: the token that stands for the clip; it is repeated once for every visual token.
        spec: the frames that a configuration asks for, where no preprocessor file says it.
        features: (config, pixels [F, 3, h, w], times [F] in s) -> the model's visual inputs.
        count: (config, features) -> number of visual tokens.
        token_types: the model wants `mm_token_type_ids`, which say which tokens are video.
    """

    model: str
    prompt: str
    placeholder: str
    spec: Callable[[Any], FrameSpec]
    features: Callable[[Any, Tensor, np.ndarray], Features]
    count: Callable[[Any, Features], int]
    token_types: bool = False


def model_inputs(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    spec: FrameSpec | None,
    frames: Tensor,
    times_s: np.ndarray,
    question: str,
    indices: Tensor | None = None,
) -> Features:
    """Prompt, expanded placeholders and preprocessed frames, a batch of one.

    Args:
        config: the model's; `config.model_type` chooses the family.
        tokenizer: the checkpoint's; its chat template is used if it can render a video.
        spec, frames, times_s, indices: as in `clip_inputs`.
        question: plain text.

    Returns:
        input_ids [1, L] and whatever the family's forward wants beside it (`pixel_values_videos`, …).

    Raises:
        CrossdraftError: unknown model_type, a tokenizer or spec that does not fit the model, a placeholder in the
            question.
    """
    clip, features = clip_inputs(config, spec, frames, times_s, indices)
    return {**question_inputs(config, tokenizer, clip, question), **features}


def clip_inputs(
    config: PretrainedConfig, spec: FrameSpec | None, frames: Tensor, times_s: np.ndarray, indices: Tensor | None = None
) -> tuple[list[int], Features]:
    """A clip alone: the ids that stand for it in a prompt, and its preprocessed frames, a batch of one.

    Args:
        config: the model's.
        spec: as `FrameSpec.from_pretrained` read it; None takes the family's own.
        frames: uint8 RGB [F, H, W, 3].
        times_s: [F] seconds, as `read_frames` returns them.
        indices: [F] of `frames`, where these are fewer and repeat; see `ClipFrames`.

    Raises:
        CrossdraftError: unknown model_type, or a spec that does not fit the model.
    """
    family = _family(config.model_type)
    pixels = preprocess(frames, family.spec(config) if spec is None else spec)
    if indices is not None:
        pixels = pixels[indices]
    features = family.features(config, pixels, times_s)
    return [config.video_token_id] * family.count(config, features), features


def question_inputs(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, clip: Sequence[int], question: str
) -> Features:
    """What of a model's inputs depends on the question: `input_ids` [1, L], and token types where it wants them.

    Args:
        config, tokenizer, question: as in `model_inputs`.
        clip: ids that stand for the clip.

    Raises:
        CrossdraftError: as `model_inputs`.
    """
    family = _family(config.model_type)
    ids = _prompt_ids(tokenizer, config, family, question)
    at = ids.index(config.video_token_id)
    inputs = {"input_ids": torch.tensor([[*ids[:at], *clip, *ids[at + 1 :]]])}
    if family.token_types:
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == config.video_token_id).int() * 2  # 0 text, 2 video
    return inputs


def model_class(model_type: object) -> str:
    """Name of the class in `transformers` that a checkpoint of this `model_type` loads into.

    Raises:
        CrossdraftError: the type is not in FAMILIES.
    """
    return _family(model_type).model


def _family(model_type: object) -> Family:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CrossdraftError(
            f"Video models of type {model_type!r} are not known; use one of {known}, or add the type as "
            "docs/adding_a_vlm.md shows."
        )
    return FAMILIES[model_type]


def _prompt_ids(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, family: Family, question: str
) -> list[int]:
    """The prompt with a single placeholder."""
    known = tokenizer.convert_tokens_to_ids(family.placeholder)
    if known != config.video_token_id:
        raise CrossdraftError(
            f"The tokenizer writes {family.placeholder} as {known}, but the model expects "
            f"{config.video_token_id}; take both from one checkpoint."
        )
    text = _render(tokenizer, family, question)
    # A template may write the start token itself; then the tokenizer must not add a second one.
    bos = tokenizer.bos_token
    starts = isinstance(bos, str) and text.startswith(bos)
    # Whoever reads them checks the length, and says it better than the tokenizer's warning.
    ids = tokenizer(text, add_special_tokens=not starts, verbose=False)["input_ids"]
    if ids.count(config.video_token_id) != 1 or config.image_token_id in ids:
        raise CrossdraftError("The question contains an image or video placeholder of the model; leave it out.")
    return ids


def _render(tokenizer: PreTrainedTokenizerBase, family: Family, question: str) -> str:
    if tokenizer.chat_template:
        turn = {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}
        try:
            text = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
            # written for plain text only, or broken; ranges of a template may overflow
            text = ""
        if isinstance(text, str) and family.placeholder in text:
            return text
    return family.prompt.replace("{question}", question)


# --- The families ---


def _square(config: Any) -> FrameSpec:
    side = config.vision_config.image_size
    return FrameSpec(size=side, crop=(side, side))


def _stretched(config: Any) -> FrameSpec:
    side = config.vision_config.image_size
    return FrameSpec(size=(side, side), crop=None, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def _budgeted(config: Any) -> FrameSpec:
    step = config.vision_config.patch_size * config.vision_config.spatial_merge_size
    return FrameSpec(size=PixelBudget(128 * step**2, 768 * step**2, step), crop=None)


def _clip(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    side = config.vision_config.image_size
    if pixels.shape[-2:] != (side, side):
        raise _misfit(pixels, f"takes {side}x{side}")
    return {"pixel_values_videos": pixels[None]}


def _patches(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    vision = config.vision_config
    step = vision.patch_size * vision.spatial_merge_size
    if pixels.shape[-2] % step or pixels.shape[-1] % step:
        raise _misfit(pixels, f"takes multiples of {step}")
    rows, grid = patchify(pixels, vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
    return {"pixel_values_videos": rows, "video_grid_thw": grid}


def _misfit(pixels: Tensor, wanted: str) -> CrossdraftError:
    height, width = pixels.shape[-2:]
    return CrossdraftError(
        f"The preprocessor makes frames of {width}x{height}, but the model's vision encoder {wanted}; "
        "take both from one checkpoint."
    )


def _timed_patches(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    spacing = float(times_s[-1] - times_s[0]) / max(len(times_s) - 1, 1)
    # A still has no spacing; the model's own default is a second.
    seconds = spacing * config.vision_config.temporal_patch_size if spacing > 0 else 1.0
    return {**_patches(config, pixels, times_s), "second_per_grid_ts": torch.tensor([seconds])}


def _side(config: Any) -> int:
    return config.vision_config.image_size // config.vision_config.patch_size


def _count_with_class_token(config: Any, features: Features) -> int:
    return features["pixel_values_videos"].shape[1] * (_side(config) ** 2 + 1)


def _count_pooled(config: Any, features: Features) -> int:
    return features["pixel_values_videos"].shape[1] * (_side(config) // config.spatial_pool_stride) ** 2


def _count_halved(config: Any, features: Features) -> int:
    return features["pixel_values_videos"].shape[1] * (-(-_side(config) // 2)) ** 2 + 1  # and a newline


def _count_merged(config: Any, features: Features) -> int:
    return int(features["video_grid_thw"].prod()) // config.vision_config.spatial_merge_size**2


_VICUNA = "USER: <video>\n{question} ASSISTANT:"
_QWEN = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "<|vision_start|><|video_pad|><|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n"
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "video_llava": Family(
            model="VideoLlavaForConditionalGeneration",
            prompt=_VICUNA,
            placeholder="<video>",
            spec=_square,
            features=_clip,
            count=_count_with_class_token,
        ),
        "llava_next_video": Family(
            model="LlavaNextVideoForConditionalGeneration",
            prompt=_VICUNA,
            placeholder="<video>",
            spec=_square,
            features=_clip,
            count=_count_pooled,
        ),
        "llava_onevision": Family(
            model="LlavaOnevisionForConditionalGeneration",
            prompt="<|im_start|>user <video>\n{question}<|im_end|><|im_start|>assistant\n",
            placeholder="<video>",
            spec=_stretched,
            features=_clip,
            count=_count_halved,
        ),
        "qwen2_vl": Family(
            model="Qwen2VLForConditionalGeneration",
            prompt=_QWEN,
            placeholder="<|video_pad|>",
            spec=_budgeted,
            features=_patches,
            count=_count_merged,
            token_types=True,
        ),
        "qwen2_5_vl": Family(
            model="Qwen2_5_VLForConditionalGeneration",
            prompt=_QWEN,
            placeholder="<|video_pad|>",
            spec=_budgeted,
            features=_timed_patches,
            count=_count_merged,
            token_types=True,
        ),
    }
)
