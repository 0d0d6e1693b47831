"""Differences between the video models of `transformers` in reading images: tiles, inputs, visual tokens, text."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.video.preprocess import patchify
from crossdraft.video.spec import AnyResolution, FrameSpec, NearestGrid, PixelBudget, SplitImage, Tiling
from crossdraft.video.tiles import Tiles, best_canvas

Features = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Still:
    """A family's way of reading an image.

    Args:
        placeholder: the token of the configuration's `image_token_id`, repeated once for every visual token.
        features: (config, tiles of the image) -> the model's visual inputs.
        count: (config, features) -> number of visual tokens.
        spec: as in `Family`, if no preprocessor file states it; `None` = as for its frames.
        tiling: (config, settings of the image processor, empty = its defaults) -> rule for tiles; `None` = no tiles.
        marker: text that a chat template writes for an image; `None` = the placeholder.
        text: (config, tiles) -> text that replaces the marker, as in `Family`.
        clip_budget: true if a budget of pixels counts an image as a clip of one patch of frames.
    """

    placeholder: str
    features: Callable[[Any, Tiles], Features]
    count: Callable[[Any, Features], int]
    spec: Callable[[Any], FrameSpec] | None = None
    tiling: Callable[[Any, Mapping[str, Any]], Tiling] | None = None
    marker: str | None = None
    text: Callable[[Any, Tiles], str] | None = None
    clip_budget: bool = False


def image_side(config: Any) -> int:
    """Side, in pixels, of the images of a vision encoder with one size."""
    side: Any = config.vision_config.image_size
    return side if isinstance(side, int) else side[0]


def patch_step(config: Any) -> int:
    """Side, in pixels, of the square that becomes one visual token, for encoders with free image sizes."""
    return config.vision_config.patch_size * config.vision_config.spatial_merge_size


def squares(config: Any, pixels: Tensor) -> Features:
    """Inputs for an encoder with one size, from pixels [N, 3, h, w]."""
    side = image_side(config)
    if pixels.shape[-2:] != (side, side):
        raise _misfit(pixels, f"takes {side}x{side}")
    return {"pixel_values": pixels}


def patch_rows(config: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Convert frames [F, 3, h, w] to rows and grid of an encoder of space-time patches; see `patchify`."""
    vision, step = config.vision_config, patch_step(config)
    if pixels.shape[-2] % step or pixels.shape[-1] % step:
        raise _misfit(pixels, f"takes multiples of {step}")
    return patchify(pixels, vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)


def _misfit(pixels: Tensor, wanted: str) -> CrossdraftError:
    height, width = pixels.shape[-2:]
    return CrossdraftError(
        f"The preprocessor makes frames of {width}x{height}, but the model's vision encoder {wanted}; "
        "take both from one checkpoint."
    )


def patch_side(config: Any) -> int:
    """Number of patches along a side of the image, for a vision encoder with one size."""
    patch: Any = config.vision_config.patch_size
    return image_side(config) // (patch if isinstance(patch, int) else patch[0])


def count_shuffled(config: Any, features: Features) -> int:
    """Number of visual tokens of InternVL's tiles."""
    return features["pixel_values"].shape[-4] * int(patch_side(config) * config.downsample_ratio) ** 2


def count_scaled(config: Any, features: Features) -> int:
    """Number of visual tokens of SmolVLM's tiles."""
    return features["pixel_values"].shape[-4] * (patch_side(config) // config.scale_factor) ** 2


def count_pooled(config: Any, features: Features) -> int:
    """Number of visual tokens of Gemma 3's images."""
    return len(features["pixel_values"]) * config.mm_tokens_per_image


def _squares(config: Any, tiles: Tiles) -> Features:
    return squares(config, tiles.pixels)


def _nested(config: Any, tiles: Tiles) -> Features:
    return {"pixel_values": squares(config, tiles.pixels)["pixel_values"][None]}


def _sized(config: Any, tiles: Tiles) -> Features:
    return {**squares(config, tiles.pixels), "image_sizes": torch.tensor([tiles.size])}


def _patches(config: Any, tiles: Tiles) -> Features:
    rows, grid = patch_rows(config, tiles.pixels)
    return {"pixel_values": rows, "image_grid_thw": grid}


def _count_square(config: Any, features: Features) -> int:
    return patch_side(config) ** 2 + (config.vision_feature_select_strategy == "full")  # "full" keeps the class token


def _count_patches(config: Any, features: Features) -> int:
    return int(features["image_grid_thw"].prod()) // config.vision_config.spatial_merge_size**2


def _count_unpadded(config: Any, features: Features) -> int:
    """Count for LLaVA-NeXT: the whole image, and the tiles' patches outside black bars, each row with a newline."""
    rows, columns = _unpadded(config, features)
    return patch_side(config) ** 2 + rows * (columns + 1)


def _count_shrunk(config: Any, features: Features) -> int:
    """Count for LLaVA-OneVision: as `_count_unpadded`, shrunk to about the patches of 9 tiles by `anyres_max_9`."""
    rows, columns = _unpadded(config, features)
    most = int(config.vision_aspect_ratio.removeprefix("anyres_max_")) * patch_side(config) ** 2
    ratio = math.sqrt(rows * columns / most)
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return patch_side(config) ** 2 + rows * (columns + 1)


def _unpadded(config: Any, features: Features) -> tuple[int, int]:
    """(rows, columns) of a canvas' patches that show the image."""
    height, width = features["image_sizes"][0].tolist()
    canvas = best_canvas((height, width), _canvases(config, {}))
    rows, columns = (edge // image_side(config) * patch_side(config) for edge in canvas)
    if width / height > columns / rows:
        return rows - (rows - int(round(height * (columns / width), 7))) // 2 * 2, columns
    return rows, columns - (columns - int(round(width * (rows / height), 7))) // 2 * 2


def _canvases(config: Any, settings: Mapping[str, Any]) -> AnyResolution:
    """Return the model's own canvases, by which it counts tiles, whatever the processor's are."""
    return AnyResolution(tuple((height, width) for height, width in config.image_grid_pinpoints))


def _grids(config: Any, settings: Mapping[str, Any]) -> NearestGrid:
    """Return InternVL's grids: its processor cuts tiles even if its image processor has `crop_to_patches` off."""
    return NearestGrid(int(settings.get("min_patches", 1)), int(settings.get("max_patches", 12)))


def _splits(config: Any, settings: Mapping[str, Any]) -> SplitImage | None:
    return SplitImage() if settings.get("do_image_splitting", True) else None


def _budget(config: Any) -> FrameSpec:
    step = patch_step(config)
    return FrameSpec(size=PixelBudget(4 * step**2, 1280 * step**2, step), crop=None)


def _wide_budget(config: Any) -> FrameSpec:
    step, half = patch_step(config), (0.5, 0.5, 0.5)
    return FrameSpec(PixelBudget(64 * step**2, 16384 * step**2, step), None, half, half)


def _glm_budget(config: Any) -> FrameSpec:
    step = patch_step(config)
    return FrameSpec(size=PixelBudget(16 * step**2, 15_000 * step**2, step), crop=None)


def _between_marks(config: Any, tiles: Tiles) -> str:
    return "<img><IMG_CONTEXT></img>"


def _on_its_own_line(config: Any, tiles: Tiles) -> str:
    return "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"


def _by_rows(config: Any, tiles: Tiles) -> str:
    """Write SmolVLM's tiles, each behind its row and column, then the whole image."""
    rows, columns = tiles.grid
    mark, whole = "<fake_token_around_image>", "<fake_token_around_image><global-img><image><fake_token_around_image>"
    lines = [
        "".join(f"{mark}<row_{row + 1}_col_{column + 1}><image>" for column in range(columns)) for row in range(rows)
    ]
    return "\n".join([*lines, "", whole]) if lines else whole


VIDEO_LLAVA = Still("<image>", _squares, _count_square)
LLAVA_NEXT = Still("<image>", _sized, _count_unpadded, tiling=_canvases)
ONEVISION = Still("<image>", _sized, _count_shrunk, tiling=_canvases)
QWEN2 = Still("<|image_pad|>", _patches, _count_patches, _budget)
QWEN3 = replace(QWEN2, spec=_wide_budget)
GLM = Still("<|image|>", _patches, _count_patches, _glm_budget, clip_budget=True)
INTERNVL = Still("<IMG_CONTEXT>", _squares, count_shuffled, tiling=_grids, text=_between_marks)
SMOLVLM = Still("<image>", _nested, count_scaled, tiling=_splits, text=_by_rows)
GEMMA3 = Still("<image_soft_token>", _squares, count_pooled, marker="<start_of_image>", text=_on_its_own_line)
