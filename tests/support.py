"""A pair of models and a clip small enough to be made anew for every test run.

The models are random, but not arbitrary: every printable token has a favourite successor, which the context overrules
now and then, and the drafters' language model is the target's with noise. So answers are printable nonsense that
depends on what the models see, and some drafts are accepted and some are not.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    VideoLlavaConfig,
    VideoLlavaForConditionalGeneration,
)

import crossdraft.api
from crossdraft.events import write_dsec_h5
from crossdraft.models.eventgpt import (
    EventGPTConfig,
    EventGPTForConditionalGeneration,
    EventGPTProcessor,
    ProcessorOptions,
)
from crossdraft_lab.scenes.sensor import CLEAN
from crossdraft_lab.scenes.simulate import simulate
from crossdraft_lab.train.reference.tokenizer import BOS, EOS, EVENT, IMAGE, PAD, SPECIALS, VIDEO, train_tokenizer

# Before transformers 5.18 a model encodes a clip as it reads it (`Traits.takes_encoded`). What needs the features by
# themselves is refused there: a glance, compressions, frames that windows share, reading elsewhere.
ENCODES_CLIPS = Version(transformers.__version__) >= crossdraft.api.ENCODES_CLIPS
encodes_clips = pytest.mark.skipif(not ENCODES_CLIPS, reason="transformers 5.18 or later encodes a clip by itself")

VOCABULARY = 320
CONTEXT = 512
LAYER_GAIN = 0.15  # what the layers add to the last token's embedding: how much an answer depends on its context
EVENT_NOISE, BLIND_NOISE = 0.1, 0.5  # about 3 of 4, and 2 of 5 tokens as the target would write them
FRAMES, EVENT_FRAMES = 8, 5
SIDE, PATCH = 28, 14  # 2 x 2 patches and a class token per frame
TEMPLATE = "USER: {event}\n{question} ASSISTANT:"
CORPUS = ("what is the car in front doing? the car in front is turning left near the red light.",) * 4


def until(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Wait until something is so; false if it is not in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(condition())


def failing(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """A function of any arguments that raises the error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


@dataclass(frozen=True)
class PairPaths:
    """Checkpoint folders: a Video-LLaVA, an EventGPT that often agrees with it, and one that agrees less."""

    target: Path
    event: Path
    blind: Path


@dataclass(frozen=True)
class ClipPaths:
    """One second of a moving square: mp4, and DSEC-format events on the same clock."""

    video: Path
    events: Path


def tiny_pair(folder: Path, seed: int = 0) -> PairPaths:
    """Build and save the models, in well under a second."""
    paths = PairPaths(folder / "target", folder / "event", folder / "blind")
    tokenizer = train_tokenizer(CORPUS, VOCABULARY)
    generator = torch.Generator().manual_seed(seed)
    target = _target(tokenizer)
    _randomise(target, tokenizer, generator)
    _save(target, tokenizer, paths.target)
    square = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=square).save_pretrained(paths.target)
    for path, noise in ((paths.event, EVENT_NOISE), (paths.blind, BLIND_NOISE)):
        drafter = _drafter(tokenizer)
        _randomise(drafter, tokenizer, generator)
        _imitate(drafter, target, noise, generator)
        _save(drafter, tokenizer, path)
        options = ProcessorOptions(template=TEMPLATE, window_us=1_000_000)
        EventGPTProcessor(drafter.config, tokenizer, options).save_pretrained(path)
    return paths


def tiny_clip(folder: Path, top: int = 24) -> ClipPaths:
    """Write a clip: a bright square that crosses a dark 64 x 64 scene within a second, `top` pixels from above."""
    from crossdraft.video import write_mp4  # PyAV: what needs no file runs without

    paths = ClipPaths(folder / "clip.mp4", folder / "clip.h5")
    write_mp4(paths.video, [_square(i / 24, top, grey=False) for i in range(24)], fps=24)
    greys = [(1000 * i, _square(i / 1000, top, grey=True)) for i in range(0, 1000, 4)]
    write_dsec_h5(paths.events, simulate(greys, CLEAN, seed=0))
    return paths


def _square(time_s: float, top: int, *, grey: bool) -> np.ndarray:
    """uint8 [64, 64, 3] at a time in seconds; [64, 64] if grey."""
    frame = np.full((64, 64, 3), 40, np.uint8)
    left = round(48 * time_s)
    frame[top : top + 16, left : left + 16] = (230, 180, 60)
    return frame.mean(2).astype(np.uint8) if grey else frame


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    return tokenizer.get_vocab()[token]


def _vision(width: int) -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=width,
    )


def _text(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        bos_token_id=_id(tokenizer, BOS),
        eos_token_id=_id(tokenizer, EOS),
        pad_token_id=_id(tokenizer, PAD),
        tie_word_embeddings=False,
    )


def _target(tokenizer: PreTrainedTokenizerFast) -> VideoLlavaForConditionalGeneration:
    per_frame = (SIDE // PATCH) ** 2 + 1
    make: Any = VideoLlavaConfig  # pyright does not see its fields
    config = make(
        vision_config=_vision(16),
        text_config=_text(tokenizer),
        image_token_id=_id(tokenizer, IMAGE),
        video_token_id=_id(tokenizer, VIDEO),
        image_seq_length=per_frame - 1,
        video_seq_length=per_frame * FRAMES,
        tie_word_embeddings=False,
    )
    return VideoLlavaForConditionalGeneration(config)


def _drafter(tokenizer: PreTrainedTokenizerFast) -> EventGPTForConditionalGeneration:
    config = EventGPTConfig(
        vision_config=_vision(16),
        text_config=_text(tokenizer),
        event_token_id=_id(tokenizer, EVENT),
        num_event_frames=EVENT_FRAMES,
    )
    return EventGPTForConditionalGeneration(config)


def _randomise(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, generator: torch.Generator) -> None:
    """Random weights, and a head that favours one successor for each printable token and mutes the others."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                gain = LAYER_GAIN if "o_proj" in name or "down_proj" in name else 1.5
                scale = gain / parameter[0].numel() ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        texts = [str(tokenizer.decode([i])) for i in range(len(tokenizer) - len(SPECIALS))]
        printable = [i for i, text in enumerate(texts) if text.isascii() and text.isprintable() and text[0] != "<"]
        printable.append(_id(tokenizer, EOS))
        after = [printable[i] for i in torch.randperm(len(printable), generator=generator)]
        model.lm_head.weight.zero_()
        model.lm_head.weight[after] = model.get_input_embeddings().weight[printable]  # pyright: ignore[reportIndexIssue]


def _imitate(
    drafter: EventGPTForConditionalGeneration,
    target: VideoLlavaForConditionalGeneration,
    noise: float,
    generator: torch.Generator,
) -> None:
    """Give the drafter the target's language model and head, each weight off by `noise` times its spread."""
    pairs = [(drafter.model.language_model, target.model.language_model), (drafter.lm_head, target.lm_head)]
    with torch.no_grad():
        for own, others in pairs:
            for mine, theirs in zip(own.parameters(), others.parameters(), strict=True):
                spread = theirs.std() if theirs.ndim > 1 else torch.zeros(())
                error = torch.randn(theirs.shape, generator=generator) * noise * spread
                mine.copy_(theirs + error * (theirs != 0))


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def endless_target(pair: PairPaths, folder: Path) -> Path:
    """A copy of the target with room for an answer of many seconds, and no token that ends it."""
    shutil.copytree(pair.target, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 20_000
    (folder / "config.json").write_text(json.dumps(config))
    ends = json.loads((folder / "generation_config.json").read_text())
    ends["eos_token_id"] = config["video_token_index"]
    (folder / "generation_config.json").write_text(json.dumps(ends))
    return folder


def install(folder: Path, module: str, source: str, group: str, points: Mapping[str, str]) -> None:
    """Write a package of one module into a folder as pip would: `points` are entry points, name -> attribute."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {module}:{attribute}" for name, attribute in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
