"""Preprocessing against HF's own image processors (the PIL ones), and worked cases."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.image_processing_backends import PilBackend
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.glm4v.video_processing_glm4v import smart_resize as glm_resize
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as clip_resize
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from crossdraft.errors import CrossdraftError
from crossdraft.video.preprocess import (
    RESIZED,
    centre_crop,
    kept_weights,
    normalise,
    patchify,
    preprocess,
    resize,
    resize_kept,
    resized,
)
from crossdraft.video.spec import FrameSpec, LongestEdge, PixelBudget

HALF = (0.5, 0.5, 0.5)
SIDES = (17, 64, 101, 224, 333, 480)
SIZES = [(height, width) for height in SIDES for width in SIDES if max(height, width) <= 8 * min(height, width)]


def scene(height: int, width: int, seed: int = 0) -> Tensor:
    """A picture [1, H, W, 3] with what a road shows: gradients, hard edges, black on white, some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    picture = np.stack([x * 255 / width, y * 255 / height, (x + y) * 3 % 256], -1)
    for _ in range(6):
        top, left = rng.integers(height), rng.integers(width)
        tall, wide = rng.integers(1, height // 2 + 2), rng.integers(1, width // 2 + 2)
        picture[top : top + tall, left : left + wide] = rng.choice([0, 40, 255], 3)
    picture += rng.normal(0, 4, picture.shape)
    return torch.from_numpy(picture.clip(0, 255).astype(np.uint8))[None]


def noise(height: int, width: int, seed: int = 0) -> Tensor:
    """The hardest picture there is."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (1, height, width, 3), dtype=torch.uint8, generator=generator)


def steps(ours: Tensor, theirs: Tensor, spec: FrameSpec) -> Tensor:
    """Differences of normalised pixels, in 8-bit steps."""
    std = torch.tensor(spec.std).view(3, 1, 1)
    return ((ours - theirs) * std / spec.rescale).abs()


def by_hf(processor: PilBackend, frames: Tensor) -> Tensor:
    pictures = list(frames.numpy())
    return processor(pictures, return_tensors="pt", input_data_format="channels_last")["pixel_values"]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_equals_clip_within_a_step(height: int, width: int) -> None:
    spec, frames = FrameSpec(), scene(height, width)
    theirs = by_hf(CLIPImageProcessorPil(), frames)
    assert steps(preprocess(frames, spec), theirs, spec).max() < 1.01


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_equals_siglip_within_a_step(height: int, width: int) -> None:
    spec, frames = FrameSpec(size=(96, 130), crop=None, mean=HALF, std=HALF), scene(height, width)
    theirs = by_hf(SiglipImageProcessorPil(size={"height": 96, "width": 130}), frames)
    assert steps(preprocess(frames, spec), theirs, spec).max() < 1.01


@pytest.mark.parametrize(("height", "width"), [*SIZES, (7, 100)])
def test_equals_smolvlm_within_a_step_of_either_resize(height: int, width: int) -> None:
    """Which says what a frame gets that is not cut into tiles: the longest edge, then a square."""
    spec = FrameSpec(LongestEdge(200), None, HALF, HALF, resample="lanczos", squeeze=(48, 48))
    sizes = {"size": {"longest_edge": 200}, "max_image_size": {"longest_edge": 48}}
    frames = scene(height, width)
    theirs = by_hf(SmolVLMImageProcessorPil(**sizes, do_image_splitting=False), frames)[0]
    assert steps(preprocess(frames, spec), theirs, spec).max() < 2.01


@pytest.mark.parametrize(("height", "width"), [(240, 320), (321, 243), (100, 90), (480, 640)])
def test_even_noise_is_hardly_ever_two_steps_off(height: int, width: int) -> None:
    spec, frames = FrameSpec(), noise(height, width)
    difference = steps(preprocess(frames, spec), by_hf(CLIPImageProcessorPil(), frames), spec)
    assert difference.max() < 2.01
    assert (difference > 1.01).double().mean() < 1e-6


def test_the_comparison_sees_a_missing_antialias_and_a_shifted_crop() -> None:
    spec, frames = FrameSpec(), scene(333, 480)
    theirs = by_hf(CLIPImageProcessorPil(), frames)
    size = resized(333, 480, 224)
    aliased = F.interpolate(frames.movedim(-1, 1), size=size, mode="bicubic")
    assert steps(normalise(centre_crop(aliased, (224, 224)), spec), theirs, spec).max() > 5
    whole = resize(frames.movedim(-1, 1), 224, "bicubic")
    left = (size[1] - 224) // 2 + 1
    assert steps(normalise(whole[..., left : left + 224], spec), theirs, spec).max() > 5


@pytest.mark.parametrize("frames", [2, 3, 5, 30])
@pytest.mark.parametrize("high", [64 * 1024, 786_432, 25_165_824])
def test_a_clip_s_size_is_that_of_qwen3_and_of_glm(frames: int, high: int) -> None:
    for height, width in (*SIZES, (9, 30)):
        for step, theirs in ((32, clip_resize), (28, glm_resize)):
            ours = resized(height, width, PixelBudget(4096, high, step).of_clip(frames, 2))
            assert ours == theirs(frames, height, width, 2, step, 4096, high)


def test_a_frame_s_cap_is_that_of_qwen3() -> None:
    own = {"cap_pixels_per_frame": True, "max_video_tokens": 20}
    processor = Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 2_516_582})
    spec = FrameSpec.from_settings(processor.to_dict() | own, "x")
    assert isinstance(spec.size, PixelBudget)
    for frames, height, width in ((4, 480, 640), (9, 900, 300), (600, 480, 640)):
        processor.max_video_tokens = 20
        patches = processor.get_num_of_video_patches(frames, height, width, own)
        h, w = resized(height, width, spec.size.of_clip(frames, 2))
        assert patches == -(-frames // 2) * (h // 16) * (w // 16)


def test_patches_of_a_clip_are_those_of_qwen3() -> None:
    pixels = torch.randn(5, 3, 64, 96)
    rows, grid = patchify(pixels, 16, 2, 2)
    theirs, *sides = Qwen3VLVideoProcessor().patchify(pixels[None], 16, 2, 2)
    assert torch.equal(rows, theirs[0])
    assert grid.tolist() == [sides]


LONG = [(8, 1000), (1000, 8), (3, 900), (640, 64), (1, 300)]


@pytest.mark.parametrize(("height", "width"), LONG)
def test_long_frames_equal_clip_s_too(height: int, width: int) -> None:
    spec, frames = FrameSpec(size=96, crop=(96, 96)), torch.cat([scene(height, width), noise(height, width)])
    processor = CLIPImageProcessorPil(size={"shortest_edge": 96}, crop_size={"height": 96, "width": 96})
    assert steps(preprocess(frames, spec), by_hf(processor, frames), spec).max() < 1.01


@pytest.mark.parametrize("resample", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop", [(60, 31), (40, 53), (100, 100)])
@pytest.mark.parametrize(("height", "width"), [(101, 77), (64, 480), (333, 101), (17, 17)])
def test_what_the_crop_keeps_is_what_the_whole_gives(
    height: int, width: int, crop: tuple[int, int], resample: str
) -> None:
    pixels = scene(height, width).movedim(-1, 1)
    for size in (31, 100):
        whole = centre_crop(resize(pixels, size, resample), crop)
        kept = centre_crop(resize_kept(pixels, resized(height, width, size), crop, resample), crop)
        assert (whole.int() - kept.int()).abs().max() <= 1


def test_the_weights_of_a_worked_axis() -> None:
    """4 pixels to 8, the middle 2 kept: their centres are at 1.75 and 2.25 of the source."""
    weights, start, stop = kept_weights(4, 8, 2, "bilinear")
    assert (weights.tolist(), start, stop) == ([[0.75, 0.25], [0.25, 0.75]], 1, 3)


def test_only_the_source_under_the_crop_is_read() -> None:
    """16x16384 to 336x344064, of which 336 columns are kept: 16 of the source, and two more at either edge."""
    weights, start, stop = kept_weights(16384, 344064, 336, "bicubic")
    assert (weights.shape, start, stop) == ((336, 20), 8182, 8202)


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.elements = max(self.elements, out.numel() if isinstance(out, Tensor) else 0)
        return out


@pytest.mark.parametrize(("height", "width"), [(16, 16384), (16384, 16), (1, 5000)])
def test_the_work_on_a_long_frame_follows_the_crop(height: int, width: int) -> None:
    """Resized whole, the first would be 336x344064: a thousand times what is kept of it."""
    frames = torch.zeros(2, height, width, 3, dtype=torch.uint8)
    with Largest() as largest:
        preprocess(frames, FrameSpec(size=336, crop=(336, 336)))
    assert largest.elements <= max(2 * 3 * 336 * 336, frames.numel())


def test_a_crop_larger_than_the_frame_pads_like_hf() -> None:
    spec, frames = FrameSpec(size=31, crop=(40, 53)), scene(45, 60)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 31}, crop_size={"height": 40, "width": 53})
    ours = preprocess(frames, spec)
    assert ours.shape == (1, 3, 40, 53)
    assert steps(ours, by_hf(processor, frames), spec).max() < 1.01


def test_a_worked_case() -> None:
    frames = torch.tensor([[[[0, 128, 255]] * 2] * 2], dtype=torch.uint8)  # one 2x2 frame
    out = preprocess(frames, FrameSpec(size=2, crop=None, mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0)))
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    np.testing.assert_allclose(out[0, :, 0, 0], [-1.0, 128 / 255, 0.0], atol=1e-6)


@given(height=st.integers(1, 2000), width=st.integers(1, 2000), size=st.integers(1, 500))
def test_the_shortest_edge_gets_the_size(height: int, width: int, size: int) -> None:
    h, w = resized(height, width, size)
    assert min(h, w) == size
    assert h <= w if height <= width else h >= w


@given(height=st.integers(28, 1500), width=st.integers(28, 1500), low=st.integers(1, 400), more=st.integers(0, 900))
def test_pixel_budgets_are_qwens(height: int, width: int, low: int, more: int) -> None:
    budget = PixelBudget(low * 784, (low + more + 4) * 784, 28)
    assert resized(height, width, budget) == smart_resize(height, width, 28, budget.low, budget.high)


def test_a_frame_too_narrow_for_a_budget_or_to_be_kept_whole() -> None:
    with pytest.raises(CrossdraftError, match="too narrow"):
        resized(10, 2001, PixelBudget(3136, 100_000))
    with pytest.raises(CrossdraftError, match="Frames of 1x201 are too narrow; crop them to 200:1 or less"):
        preprocess(torch.zeros(1, 201, 1, 3, dtype=torch.uint8), FrameSpec(size=8, crop=None))


@pytest.mark.parametrize(("height", "width"), [(64, 64), (101, 77), (240, 320), (57, 300)])
def test_patches_are_qwens(height: int, width: int) -> None:
    # HF's image processor doubles a still to fill a two-frame patch; so do we with a clip of equal frames.
    budget = PixelBudget(4 * 784, 60 * 784, 28)
    spec, frames = FrameSpec(size=budget, crop=None), scene(height, width)
    processor = Qwen2VLImageProcessorPil(min_pixels=budget.low, max_pixels=budget.high)
    out = processor(list(frames.numpy()), return_tensors="pt", input_data_format="channels_last")
    rows, grid = patchify(preprocess(frames.expand(2, -1, -1, -1), spec), 14, 2, 2)
    assert torch.equal(grid, out["image_grid_thw"])
    std = torch.tensor(spec.std).repeat_interleave(2 * 14 * 14)
    assert ((rows - out["pixel_values"]) * std * 255).abs().max() < 1.01


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_patches_against_plain_loops(frames: int) -> None:
    patch, merge, temporal = 2, 2, 2
    pixels = torch.arange(frames * 3 * 8 * 12, dtype=torch.float32).view(frames, 3, 8, 12)
    rows, grid = patchify(pixels, patch, merge, temporal)
    time = math.ceil(frames / temporal)
    assert grid.tolist() == [[time, 4, 6]]
    expected = [
        [
            float(pixels[min(t * temporal + dt, frames - 1), c, y * patch + dy, x * patch + dx])
            for c in range(3)
            for dt in range(temporal)
            for dy in range(patch)
            for dx in range(patch)
        ]
        for t in range(time)
        for block_y in range(0, 4, merge)
        for block_x in range(0, 6, merge)
        for y in range(block_y, block_y + merge)
        for x in range(block_x, block_x + merge)
    ]
    assert rows.tolist() == expected


@pytest.mark.parametrize(
    "frames",
    [
        torch.zeros(1, 4, 4, 3),
        torch.zeros(4, 4, 3, dtype=torch.uint8),
        torch.zeros(1, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(0, 4, 4, 3, dtype=torch.uint8),
    ],
)
def test_frames_of_another_kind(frames: Tensor) -> None:
    with pytest.raises(CrossdraftError, match="give uint8 RGB"):
        preprocess(frames, FrameSpec())


@pytest.mark.parametrize("spec", [FrameSpec(), FrameSpec(size=PixelBudget(28**2, 112**2), crop=None)])
def test_many_frames_are_resized_a_few_at_a_time(spec):
    frames = torch.randint(0, 255, (2 * RESIZED + 1, 60, 90, 3), dtype=torch.uint8)
    alone = torch.cat([preprocess(frame[None], spec) for frame in frames])
    assert torch.equal(preprocess(frames, spec), alone)
