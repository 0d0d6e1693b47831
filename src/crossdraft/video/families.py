"""Differences between the video models of `transformers`: prompt, frames, inputs, visual tokens.

To add a model, add its class to `classes.CLASSES` and an entry to FAMILIES: its prompt format, the frames it wants,
their conversion to inputs, and the number of placeholders for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossdraft.video import stills
from crossdraft.video.number_words import number_words
from crossdraft.video.spec import IMAGENET_MEAN, IMAGENET_STD, FrameSpec, LongestEdge, PixelBudget
from crossdraft.video.stills import (
    Features,
    Still,
    count_pooled,
    count_scaled,
    count_shuffled,
    image_side,
    patch_rows,
    patch_side,
    patch_step,
    squares,
)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The prompt's format for tokenizers without a template; "{content}" is filled in.

    Args:
        user, assistant, system: format of one message of each role.
        answer: text that an answer begins with.
        video, image: placeholder of a clip and of an image in a message.
        no_system: text in place of a missing system prompt.
        start: text that the whole prompt begins with.
    """

    user: str
    assistant: str
    system: str
    answer: str
    video: str
    image: str
    no_system: str = ""
    start: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Properties in which video models differ.

    Args:
        placeholder: token for visual content; it is repeated once for every visual token.
        spec: frames that a configuration asks for, if no preprocessor file states them.
        features: (config, pixels [F, 3, h, w], times [F] in s) -> the model's visual inputs.
        count: (config, features) -> number of visual tokens.
        chat: format of its prompt.
        still: its way of reading images.
        kind: "video" or "image": which of the configuration's token ids the placeholder is.
        part: name of such a part of a message in chat templates.
        marker: text that a chat template writes for it; `None` = the placeholder.
        text: (config, times [F] in s) -> text that replaces the marker, with one placeholder for each of equal runs of
            visual tokens; `None` = the placeholder alone.
        token_types: name of the input that marks visual tokens, and their number in it; text is 0, an image 1.
        clip_budget: true if a budget of pixels is for the whole clip, not for a frame.
        clips_dim: dimension along which the pixels of several clips, or images, are joined.
        timed: true if the model reads the times of a clip's frames, in its text or its inputs.
    """

    placeholder: str
    spec: Callable[[Any], FrameSpec]
    features: Callable[[Any, Tensor, np.ndarray], Features]
    count: Callable[[Any, Features], int]
    chat: ChatFormat
    still: Still
    kind: str = "video"
    part: str = "video"
    marker: str | None = None
    text: Callable[[Any, np.ndarray], str] | None = None
    token_types: tuple[str, int] | None = None
    clip_budget: bool = False
    clips_dim: int = 0
    timed: bool = False


VIDEO_TYPES = ("mm_token_type_ids", 2)


def _square(config: Any) -> FrameSpec:
    side = config.vision_config.image_size
    return FrameSpec(size=side, crop=(side, side))


def _stretched(config: Any) -> FrameSpec:
    side = config.vision_config.image_size
    return FrameSpec(size=(side, side), crop=None, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def _imagenet(config: Any) -> FrameSpec:
    side = image_side(config)
    return FrameSpec(size=(side, side), crop=None, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _squeezed(config: Any) -> FrameSpec:
    side = image_side(config)
    half = (0.5, 0.5, 0.5)
    return FrameSpec(LongestEdge(4 * side), None, half, half, resample="lanczos", squeeze=(side, side))


def _stretched_smoothly(config: Any) -> FrameSpec:
    return replace(_stretched(config), resample="bilinear")


def _budgeted(config: Any) -> FrameSpec:
    step = patch_step(config)
    return FrameSpec(size=PixelBudget(128 * step**2, 768 * step**2, step), crop=None)


def _clip_budgeted(config: Any) -> FrameSpec:
    """Frame spec of Qwen3-VL's video processors, for checkpoints that state none."""
    half, step = (0.5, 0.5, 0.5), patch_step(config)
    return FrameSpec(PixelBudget(128 * step**2, 768 * step**2, step), None, half, half)


def _clip_budgeted_glm(config: Any) -> FrameSpec:
    step = patch_step(config)
    return FrameSpec(size=PixelBudget(16 * step**2, 60_000 * step**2, step), crop=None)


def _clip(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    return {"pixel_values_videos": squares(config, pixels)["pixel_values"][None]}


def _patches(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    rows, grid = patch_rows(config, pixels)
    return {"pixel_values_videos": rows, "video_grid_thw": grid}


def _pictures(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    return squares(config, pixels)


def _nested_pictures(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    return {"pixel_values": squares(config, pixels)["pixel_values"][None]}


def _timed_patches(config: Any, pixels: Tensor, times_s: np.ndarray) -> Features:
    spacing = float(times_s[-1] - times_s[0]) / max(len(times_s) - 1, 1)
    # A still has no spacing; the model's own default is a second.
    seconds = spacing * config.vision_config.temporal_patch_size if spacing > 0 else 1.0
    return {**_patches(config, pixels, times_s), "second_per_grid_ts": torch.tensor([seconds])}


def _count_with_class_token(config: Any, features: Features) -> int:
    return features["pixel_values_videos"].shape[1] * (patch_side(config) ** 2 + 1)


def _count_pooled(config: Any, features: Features) -> int:
    return features["pixel_values_videos"].shape[1] * (patch_side(config) // config.spatial_pool_stride) ** 2


def _count_halved(config: Any, features: Features) -> int:
    return features["pixel_values_videos"].shape[1] * (-(-patch_side(config) // 2)) ** 2 + 1  # and a newline


def _count_merged(config: Any, features: Features) -> int:
    return int(features["video_grid_thw"].prod()) // config.vision_config.spatial_merge_size**2


def _numbered(config: Any, times_s: np.ndarray) -> str:
    """Number InternVL's frames."""
    return "\n".join(f"Frame{i + 1}: <img><IMG_CONTEXT></img>" for i in range(len(times_s)))


def _in_a_row(config: Any, times_s: np.ndarray) -> str:
    """Write frames for Gemma 3 as its processor writes successive images."""
    return "\n\n<start_of_image><image_soft_token><end_of_image>\n\n" * len(times_s)


def _stamped(config: Any, times_s: np.ndarray) -> str:
    """Write frames for SmolVLM by their time; the clip's length is the last frame's time, HF's fallback, too."""
    seconds = [int(second) for second in times_s]
    intro = (
        f"You are provided the following series of {number_words(len(seconds))} frames from a "
        f"{timedelta(seconds=seconds[-1])} [H:MM:SS] video.\n"
    )
    image = "<fake_token_around_image><global-img><image><fake_token_around_image>"
    return intro + "".join(f"\nFrame from {s // 60:02d}:{s % 60:02d}:{image}" for s in seconds) + "\n\n"


def _times_between(config: Any, times_s: np.ndarray) -> str:
    """Write for Qwen3-VL, before each patch of frames, the middle of its time."""
    size = config.vision_config.temporal_patch_size
    seconds = [*map(float, times_s), *[float(times_s[-1])] * (-len(times_s) % size)]
    middles = [(seconds[i] + seconds[i + size - 1]) / 2 for i in range(0, len(seconds), size)]
    return "".join(f"<{middle:.1f} seconds><|vision_start|><|video_pad|><|vision_end|>" for middle in middles)


def _whole_seconds(config: Any, times_s: np.ndarray) -> str:
    """For GLM-4.1V and 4.5V: write the time of a patch's first frame after the patch, in seconds, rounded down."""
    return "".join(f"{_GLM_FRAME}{int(second)}" for second in _firsts(config, times_s))


def _tenths(config: Any, times_s: np.ndarray) -> str:
    """For GLM-4.6V: write the time of a patch's first frame after the patch, in tenths of a second."""
    return "".join(f"{_GLM_FRAME}{second:.1f} seconds" for second in _firsts(config, times_s))


def _firsts(config: Any, times_s: np.ndarray) -> np.ndarray:
    return times_s[:: config.vision_config.temporal_patch_size]


_GLM_FRAME = "<|begin_of_image|><|image|><|end_of_image|>"
_SYSTEM = "<|im_start|>system\n{content}<|im_end|>\n"
_VICUNA_CHAT = ChatFormat(
    user="USER: {content} ",
    assistant="ASSISTANT: {content}</s>",
    system="{content} ",
    answer="ASSISTANT:",
    video="<video>\n",
    image="<image>\n",
)
_QWEN_CHAT = ChatFormat(
    user="<|im_start|>user\n{content}<|im_end|>\n",
    assistant="<|im_start|>assistant\n{content}<|im_end|>\n",
    system=_SYSTEM,
    answer="<|im_start|>assistant\n",
    video="<|vision_start|><|video_pad|><|vision_end|>",
    image="<|vision_start|><|image_pad|><|vision_end|>",
    no_system=_SYSTEM.replace("{content}", "You are a helpful assistant."),
)
_ONEVISION_CHAT = ChatFormat(
    user="<|im_start|>user {content}<|im_end|>",
    assistant="<|im_start|>assistant\n{content}<|im_end|>",
    system="<|im_start|>system {content}<|im_end|>",
    answer="<|im_start|>assistant\n",
    video="<video>\n",
    image="<image>\n",
)
_INTERNVL_CHAT = ChatFormat(
    user="<|im_start|>user\n{content}<|im_end|>\n",
    assistant="<|im_start|>assistant\n{content}<|im_end|>\n",
    system=_SYSTEM,
    answer="<|im_start|>assistant\n",
    video="<video>\n",
    image="<IMG_CONTEXT>\n",
)
_SMOLVLM_CHAT = ChatFormat(
    user="User: {content}<end_of_utterance>\n",
    assistant="Assistant: {content}<end_of_utterance>\n",
    system="System: {content}<end_of_utterance>\n",
    answer="Assistant:",
    video="<video>",
    image="<image>",
    start="<|im_start|>",
)
_GEMMA_CHAT = ChatFormat(
    user="<start_of_turn>user\n{content}<end_of_turn>\n",
    assistant="<start_of_turn>model\n{content}<end_of_turn>\n",
    system="<start_of_turn>user\n{content}<end_of_turn>\n",  # Gemma has no system role
    answer="<start_of_turn>model\n",
    video="<start_of_image>",
    image="<start_of_image>",
)
_QWEN3_CHAT = replace(_QWEN_CHAT, no_system="")
_GLM_CHAT = ChatFormat(
    user="<|user|>\n{content}",
    assistant="<|assistant|>\n{content}",
    system="<|system|>\n{content}",
    answer="<|assistant|>\n",
    video="<|begin_of_video|><|video|><|end_of_video|>",
    image="<|begin_of_image|><|image|><|end_of_image|>",
    start="[gMASK]<sop>",
)


def _qwen3() -> Family:
    return Family(
        placeholder="<|video_pad|>",
        spec=_clip_budgeted,
        features=_patches,
        count=_count_merged,
        text=_times_between,
        token_types=VIDEO_TYPES,
        chat=_QWEN3_CHAT,
        still=stills.QWEN3,
        clip_budget=True,
        timed=True,
    )


def _glm(text: Callable[[Any, np.ndarray], str]) -> Family:
    return Family(
        placeholder="<|image|>",
        spec=_clip_budgeted_glm,
        features=_patches,
        count=_count_merged,
        kind="image",  # one token for both kinds, told apart by its type
        marker="<|video|>",
        text=text,
        token_types=VIDEO_TYPES,
        chat=_GLM_CHAT,
        still=stills.GLM,
        clip_budget=True,
        timed=True,
    )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "video_llava": Family(
            placeholder="<video>",
            spec=_square,
            features=_clip,
            count=_count_with_class_token,
            chat=_VICUNA_CHAT,
            still=stills.VIDEO_LLAVA,
        ),
        "llava_next_video": Family(
            placeholder="<video>",
            spec=_square,
            features=_clip,
            count=_count_pooled,
            chat=_VICUNA_CHAT,
            still=stills.LLAVA_NEXT,
        ),
        "llava_onevision": Family(
            placeholder="<video>",
            spec=_stretched,
            features=_clip,
            count=_count_halved,
            chat=_ONEVISION_CHAT,
            still=stills.ONEVISION,
        ),
        "qwen2_vl": Family(
            placeholder="<|video_pad|>",
            spec=_budgeted,
            features=_patches,
            count=_count_merged,
            token_types=VIDEO_TYPES,
            chat=_QWEN_CHAT,
            still=stills.QWEN2,
        ),
        "qwen2_5_vl": Family(
            placeholder="<|video_pad|>",
            spec=_budgeted,
            features=_timed_patches,
            count=_count_merged,
            token_types=VIDEO_TYPES,
            chat=_QWEN_CHAT,
            still=stills.QWEN2,
            timed=True,
        ),
        "qwen3_vl": _qwen3(),
        "qwen3_vl_moe": _qwen3(),
        "qwen3_5": _qwen3(),
        "qwen3_5_moe": _qwen3(),
        "glm4v": _glm(_whole_seconds),
        "glm4v_moe": _glm(_whole_seconds),
        "glm46v": _glm(_tenths),
        "internvl": Family(
            placeholder="<IMG_CONTEXT>",
            spec=_imagenet,
            features=_pictures,
            count=count_shuffled,
            kind="image",
            marker="<video>",
            text=_numbered,
            chat=_INTERNVL_CHAT,
            still=stills.INTERNVL,
        ),
        "smolvlm": Family(
            placeholder="<image>",
            spec=_squeezed,
            features=_nested_pictures,
            count=count_scaled,
            kind="image",
            marker="<video>",
            text=_stamped,
            chat=_SMOLVLM_CHAT,
            still=stills.SMOLVLM,
            clips_dim=1,
            timed=True,
        ),
        "gemma3": Family(
            placeholder="<image_soft_token>",
            spec=_stretched_smoothly,
            features=_pictures,
            count=count_pooled,
            kind="image",
            part="image",
            marker="<start_of_image>",
            text=_in_a_row,
            token_types=("token_type_ids", 1),
            chat=_GEMMA_CHAT,
            still=stills.GEMMA3,
        ),
    }
)
