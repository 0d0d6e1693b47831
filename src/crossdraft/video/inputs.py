"""A question about a clip as the tensors that a `transformers` video model's forward takes."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from crossdraft.errors import CrossdraftError
from crossdraft.video.families import FAMILIES, REFUSED, Family, Features
from crossdraft.video.preprocess import preprocess
from crossdraft.video.spec import FrameSpec, PixelBudget

__all__ = [
    "FAMILIES",
    "ClipText",
    "Family",
    "Features",
    "clip_inputs",
    "model_class",
    "model_inputs",
    "placeholder_id",
    "question_inputs",
]


@dataclass(frozen=True, slots=True)
class ClipText:
    """What stands for a clip in a prompt.

    Args:
        text: with one placeholder for each run of visual tokens.
        run: visual tokens of each of them.
    """

    text: str
    run: int


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
    config: PretrainedConfig,
    spec: FrameSpec | None,
    frames: Tensor,
    times_s: np.ndarray,
    indices: Tensor | None = None,
    count: int | None = None,
) -> tuple[ClipText, Features]:
    """A clip alone: what stands for it in a prompt, and its preprocessed frames, a batch of one.

    Args:
        config: the model's.
        spec: as `FrameSpec.from_pretrained` read it; None takes the family's own.
        frames: uint8 RGB [F, H, W, 3].
        times_s: [F] seconds, as `read_frames` returns them.
        indices: [F] of `frames`, where these are fewer and repeat; see `ClipFrames`.
        count: frames of the whole clip, where these are only some of them.

    Raises:
        CrossdraftError: unknown model_type, or a spec that does not fit the model.
    """
    family = _family(config.model_type)
    spec = family.spec(config) if spec is None else spec
    if family.clip_budget and isinstance(spec.size, PixelBudget):
        vision: Any = getattr(config, "vision_config")  # noqa: B009
        spec = replace(spec, size=spec.size.of_clip(count or len(times_s), vision.temporal_patch_size))
    pixels = preprocess(frames, spec)
    if indices is not None:
        pixels = pixels[indices]
    features = family.features(config, pixels, times_s)
    text = family.placeholder if family.text is None else family.text(config, times_s)
    return ClipText(text, family.count(config, features) // text.count(family.placeholder)), features


def question_inputs(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, clip: ClipText, question: str
) -> Features:
    """What of a model's inputs depends on the question: `input_ids` [1, L], and token types where it wants them.

    Args:
        config, tokenizer, question: as in `model_inputs`.
        clip: what stands for the clip.

    Raises:
        CrossdraftError: as `model_inputs`.
    """
    family = _family(config.model_type)
    own = placeholder_id(config)
    ids = _prompt_ids(tokenizer, config, family, clip, question)
    expanded = [token for one in ids for token in ([own] * clip.run if one == own else [one])]
    inputs = {"input_ids": torch.tensor([expanded])}
    if family.token_types is not None:
        name, number = family.token_types
        inputs[name] = (inputs["input_ids"] == own).int() * number
    return inputs


def placeholder_id(config: PretrainedConfig) -> int:
    """The id that stands for what is visual in a model's prompts."""
    return getattr(config, f"{_family(config.model_type).kind}_token_id")


def model_class(model_type: object) -> str:
    """Name of the class in `transformers` that a checkpoint of this `model_type` loads into.

    Raises:
        CrossdraftError: the type is not in FAMILIES.
    """
    return _family(model_type).model


def _family(model_type: object) -> Family:
    if isinstance(model_type, str) and model_type in REFUSED:
        raise CrossdraftError(f"Models of type {model_type!r} cannot be a target: {REFUSED[model_type]}")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CrossdraftError(
            f"Video models of type {model_type!r} are not known; use one of {known}, or add the type as "
            "docs/adding_a_vlm.md shows."
        )
    return FAMILIES[model_type]


def _prompt_ids(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, family: Family, clip: ClipText, question: str
) -> list[int]:
    """The prompt with a single placeholder for each run of visual tokens."""
    own, marker = placeholder_id(config), family.marker or family.placeholder
    known = tokenizer.convert_tokens_to_ids(family.placeholder)
    if known != own:
        raise CrossdraftError(
            f"The tokenizer writes {family.placeholder} as {known}, but the model expects {own}; "
            "take both from one checkpoint."
        )
    before, _, after = _render(tokenizer, family, marker, question).partition(marker)
    text = before + clip.text + after
    # A template may write the start token itself; then the tokenizer must not add a second one.
    bos = tokenizer.bos_token
    starts = isinstance(bos, str) and text.startswith(bos)
    # Whoever reads them checks the length, and says it better than the tokenizer's warning.
    ids = tokenizer(text, add_special_tokens=not starts, verbose=False)["input_ids"]
    others = {getattr(config, f"{kind}_token_id", None) for kind in ("image", "video")} - {own}
    if marker in after or ids.count(own) != clip.text.count(family.placeholder) or not others.isdisjoint(ids):
        raise CrossdraftError("The question contains an image or video placeholder of the model; leave it out.")
    return ids


def _render(tokenizer: PreTrainedTokenizerBase, family: Family, marker: str, question: str) -> str:
    if tokenizer.chat_template:
        turn = {"role": "user", "content": [{"type": family.part}, {"type": "text", "text": question}]}
        try:
            text = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
            # written for plain text only, or broken; ranges of a template may overflow
            text = ""
        if isinstance(text, str) and marker in text:
            return text
    return family.prompt.replace("{question}", question)
