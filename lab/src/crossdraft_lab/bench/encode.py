"""`crossdraft bench encode`: a target's vision encoder whole, and spread over groups of CPU cores or GPUs."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaConfig, VideoLlavaConfig

from crossdraft.assembly import spread_encoding
from crossdraft.dtypes import DTYPES
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.engine.fast.pinning import one_thread, pinned
from crossdraft.engine.fast.unused_layers import pass_unread
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.workers.groups import read_groups
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft.options import Options
from crossdraft_lab.bench.scale_models import FixedPrompt, clip_large, random_prompt, random_target
from crossdraft_lab.bench.statistics import Interval, Quartiles, median_ratio, quartiles

TOWER = "video-llava-7b"  # its vision encoder and projector, with random weights
WIDTH, VOCABULARY = 4096, 64
WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class EncodeBench:
    """Settings of a measurement of encoding.

    Args:
        target: as in `Engine.load`, or `video-llava-7b`: the vision encoder of that shape, without the language model.
        where: groups of CPU cores or GPUs, as `Options(encode_devices=…)`.
        frames: of the clip.
        repeats: runs of each way, in turn.
        device, dtype: of the target.
    """

    target: str = TOWER
    where: str = "cpu:0,cpu:1"
    frames: int = 8
    repeats: int = 9
    device: str | None = None
    dtype: str | None = None

    @property
    def runs(self) -> int:
        """Runs of all ways, warm-ups included."""
        return 3 * (self.repeats + WARM_UPS)


@dataclass(frozen=True, slots=True)
class EncodeTimes:
    """Measured times of encoding.

    Args:
        one: whole, on the first group.
        whole: on the cores of all groups; of GPUs, the first once more.
        spread: a thread, of GPUs with a copy, for each group.
        largest: the largest feature.
        difference: the largest difference between features of `one` and `spread`.
        speedup, speedup_whole: medians against the first group and against all the cores at once; drawn over turns.
    """

    one: Quartiles
    whole: Quartiles
    spread: Quartiles
    largest: float
    difference: float
    speedup: Interval
    speedup_whole: Interval

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "one_ms": self.one.ms(),
            "whole_ms": self.whole.ms(),
            "spread_ms": self.spread.ms(),
            "speedup": self.speedup.to_json(),
            "speedup_whole": self.speedup_whole.to_json(),
            "largest_feature": self.largest,
            "largest_difference": self.difference,
        }


def time_encoding(bench: EncodeBench, tick: Callable[[str], None] = lambda name: None) -> EncodeTimes:
    """Measure the three ways in turn, on the same clip of noise.

    Raises:
        CrossdraftError: the target cannot be loaded, or not be spread.
    """
    groups = read_groups("--encode-devices", bench.where)
    if len(groups) < 2:
        raise CrossdraftError(f"--encode-devices is '{bench.where}'; give two groups, such as cpu:0,cpu:1.")
    with one_thread():
        plain, prompt = encode_target(bench)
        spread, _ = encode_target(bench)
        spread_encoding(spread, Options(encode_devices=(bench.where,)))
    first, every = groups[0].cores, tuple(core for group in groups for core in group.cores)
    ways = {"one": (plain, first), "whole": (plain, every), "spread": (spread, first)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for turn in range(WARM_UPS + bench.repeats):
            for name, (target, cores) in ways.items():
                taken = _timed(target, prompt, cores)
                times[name] += [taken] if turn >= WARM_UPS else []
                tick(name)
        a, b = (visual_rows(target.encode(prompt)["video"]).float() for target in (plain, spread))
    finally:
        spread.encode_at_home()
    largest, difference = float(a.abs().max()), float((a - b).abs().max())
    one, whole, several = (quartiles(times[name]) for name in ways)
    over = [median_ratio(times[name], times["spread"]) for name in ("one", "whole")]
    return EncodeTimes(one, whole, several, largest, difference, *over)


def _timed(target: Target, prompt: Prompt, cores: Sequence[int]) -> float:
    """Seconds of one encoding."""
    context: AbstractContextManager[None] = pinned(cores) if cores else nullcontext()
    with context:
        target.clock.mark().wait()
        start = time.perf_counter()
        target.encode(prompt)
        target.clock.mark().wait()
        return time.perf_counter() - start


def encode_target(bench: EncodeBench) -> tuple[Target, Prompt]:
    """The target, and a prompt with a clip of noise.

    Raises:
        CrossdraftError: it cannot be loaded.
    """
    if bench.target == TOWER:
        config = _tower_config()
        prompt = random_prompt(config, seed=0)
        (pixels,) = prompt.features.values()
        clip = pixels.repeat(1, -(-bench.frames // pixels.shape[1]), 1, 1, 1)[:, : bench.frames]
        target = random_target(config, torch.device(bench.device or "cpu"), DTYPES[bench.dtype or "float32"])
        pass_unread(target.model)  # as `load_target` does
        prepack(target.model)
        prompt = Prompt(prompt.input_ids, {"pixel_values_videos": clip})
        target.prepare = FixedPrompt(prompt)
        return target, prompt
    target = load_target(bench.target, bench.device, bench.dtype)
    noise = np.random.default_rng(0).integers(0, 256, (bench.frames, 240, 320, 3), dtype=np.uint8)
    return target, target.prepare(Request("?", noise, max_new_tokens=1))


def _tower_config() -> VideoLlavaConfig:
    """A language model of one small layer behind the encoder and the projector of Video-LLaVA-7B."""
    text = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=WIDTH // 64,
        num_hidden_layers=1,
        num_attention_heads=WIDTH // 128,
        max_position_embeddings=4096,
    )
    image, video = VOCABULARY - 2, VOCABULARY - 1
    return VideoLlavaConfig(
        vision_config=clip_large(), text_config=text, image_token_index=image, video_token_index=video
    )


def lines(bench: EncodeBench, found: EncodeTimes) -> list[str]:
    """For people."""

    def row(name: str, times: Quartiles) -> str:
        return f"{name:<34}{times.median * 1e3:>9.1f} ms  [{times.q1 * 1e3:.1f}, {times.q3 * 1e3:.1f}]"

    first = read_groups("--encode-devices", bench.where)[0]
    against = f"{found.speedup} times as fast as on {first}, {found.speedup_whole} times as whole on all (n: runs)"
    return [
        f"{bench.target}: {bench.frames} frames, medians and quartiles of {bench.repeats} runs",
        row(f"whole, {first}", found.one),
        row("whole, all of these cores", found.whole),
        row(f"spread, {bench.where}", found.spread),
        f"{against}; features differ by at most {found.difference:.1e} of {found.largest:.2g}",
    ]
