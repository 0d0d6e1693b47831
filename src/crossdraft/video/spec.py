"""Frame preprocessing for a vision encoder, read from a checkpoint's own preprocessor file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL's numbers


@dataclass(frozen=True, slots=True)
class PixelBudget:
    """Qwen's size rule: both sides a multiple of `multiple`, the area between `low` and `high` pixels.

    Args:
        low, high: pixels of one frame; or of `frames` frames together, if a clip has a budget.
        multiple: number that divides both sides.
        frames: number of frames that share the budget.
        temporal: number of frames in a patch; the frames of a clip are rounded to it, as HF does.
        frame_tokens: largest number of visual tokens of a frame, even within a clip's budget (`cap_pixels_per_frame`).
    """

    low: int
    high: int
    multiple: int = 28
    frames: int = 1
    temporal: int = 1
    frame_tokens: int | None = None

    def of_clip(self, frames: int, temporal: int) -> "PixelBudget":
        """Budget of a whole clip in place of a frame's; a clip shorter than a patch is filled up to one."""
        return replace(self, frames=max(frames, temporal), temporal=temporal)


@dataclass(frozen=True, slots=True)
class LongestEdge:
    """SmolVLM's size rule: the longer edge gets `side` pixels, the aspect is kept, the shorter edge made even."""

    side: int


Sides = tuple[int, int]
Size = int | Sides | PixelBudget | LongestEdge | None


@dataclass(frozen=True, slots=True)
class NearestGrid:
    """InternVL's tiles: the grid of `least` to `most` tiles whose aspect is nearest to the image's."""

    least: int = 1
    most: int = 12

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= 100:
            raise CrossdraftError(f"an image cannot become {self.least} to {self.most} tiles; 1 to 100 are the limits")


@dataclass(frozen=True, slots=True)
class SplitImage:
    """SmolVLM's tiles: as many as fit into the resized image."""


@dataclass(frozen=True, slots=True)
class AnyResolution:
    """LLaVA-NeXT's tiles: those of the best of several canvases, each (height, width)."""

    canvases: tuple[Sides, ...]


Tiling = NearestGrid | SplitImage | AnyResolution | None


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """Preprocessing of frames for a vision encoder.

    Args:
        size: the shortest edge to resize to, keeping the aspect; or an exact (height, width); or a pixel
            budget; or the longest edge; or None, not resized.
        crop: centre crop (height, width) after resizing; None: no crop.
        mean, std: mean and deviation of each channel, in units of the rescaled pixel.
        rescale: factor on the 8-bit value before normalising.
        resample: "lanczos", "bicubic" or "bilinear", all antialiased.
        squeeze: a second resize, after the first, to an exact (height, width); SmolVLM's frames get one.
        tiles: rule for cutting an image into tiles; a clip's frames are never cut.
    """

    size: Size = 224
    crop: tuple[int, int] | None = (224, 224)
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    rescale: float = 1 / 255
    resample: str = "bicubic"
    squeeze: tuple[int, int] | None = None
    tiles: Tiling = None

    def __post_init__(self) -> None:
        sides = [side for size in (self.size, self.crop, self.squeeze) for side in _sides(size)]
        if any(side < 1 for side in sides):
            raise CrossdraftError("sizes and crops must be at least one pixel")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(std > 0 for std in self.std):
            raise CrossdraftError("mean and std must be three numbers each, std above 0")
        if self.resample not in RESAMPLE.values():
            raise CrossdraftError(f"resample must be {' or '.join(RESAMPLE.values())}, not {self.resample!r}")

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> "FrameSpec":
        """Read the spec that HF's video processor would use for a local checkpoint directory.

        Raises:
            CrossdraftError: no preprocessor file, or one that is broken or asks for something unsupported.
        """
        where, settings = video_settings(folder)
        return cls.from_settings(settings, where)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], where: object) -> "FrameSpec":
        """Read the spec from a processor's settings; errors begin with their place, `where`.

        Raises:
            CrossdraftError: a setting is missing, or asks for something unsupported.
        """

        def does(step: str) -> bool:
            return bool(settings.get(f"do_{step}", step != "center_crop"))

        try:
            return cls(
                size=_size(settings) if does("resize") else None,
                crop=_pair(settings["crop_size"]) if does("center_crop") else None,
                mean=_three(settings["image_mean"]) if does("normalize") else (0.0, 0.0, 0.0),
                std=_three(settings["image_std"]) if does("normalize") else (1.0, 1.0, 1.0),
                rescale=float(settings.get("rescale_factor", 1 / 255)) if does("rescale") else 1.0,
                resample=RESAMPLE.get(settings.get("resample", 3), str(settings.get("resample"))),
                squeeze=_squeeze(settings) if does("resize") else None,
            )
        except (KeyError, TypeError, ValueError, CrossdraftError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise CrossdraftError(f"{where} cannot be used: {reason}; take it from the checkpoint again.") from None


# Files that describe a checkpoint's frames, and its images, with the part of each; HF's order of preference.
VIDEO_FILES = (
    ("processor_config.json", "video_processor"),
    ("video_preprocessor_config.json", None),
    ("preprocessor_config.json", None),
    ("processor_config.json", "image_processor"),
)
IMAGE_FILES = (("processor_config.json", "image_processor"), ("preprocessor_config.json", None))


def image_settings(folder: str | os.PathLike[str]) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the file that describes a checkpoint's image preprocessing, with its settings, if there is one.

    Raises:
        CrossdraftError: the file is broken.
    """
    return _settings(folder, IMAGE_FILES)


def _settings(
    folder: str | os.PathLike[str], files: Sequence[tuple[str, str | None]]
) -> tuple[Path, Mapping[str, Any]] | None:
    for name, part in files:
        where = Path(folder) / name
        if not where.is_file():
            continue
        try:
            settings = parse_json(where.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise CrossdraftError(f"{where} is not readable JSON; copy the checkpoint again.") from None
        if part is not None and isinstance(settings, dict):
            settings = settings.get(part)
        if isinstance(settings, dict):
            return where, settings
    return None


def video_settings(folder: str | os.PathLike[str]) -> tuple[Path, Mapping[str, Any]]:
    """Return the file that describes a checkpoint's frame preprocessing, with its settings; HF's order of preference.

    Raises:
        CrossdraftError: there is no such file, or it is broken.
    """
    found = _settings(folder, VIDEO_FILES)
    if found is not None:
        return found
    raise CrossdraftError(f"{folder} has no video_preprocessor_config.json or preprocessor_config.json; add one.")


def _squeeze(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Second resize of SmolVLM's frames, to the size that an image without tiles gets."""
    found = None if "merge_size" in settings else settings.get("max_image_size")  # GLM's is an unused limit
    return _pair(int(found["longest_edge"])) if found else None


def _size(settings: Mapping[str, Any]) -> Size:
    if "merge_size" in settings:  # the Qwen family stores areas under the names of edges
        size = settings.get("size") or {}
        low = settings.get("min_pixels") or size["shortest_edge"]
        high = settings.get("max_pixels") or size["longest_edge"]
        multiple = int(settings["patch_size"]) * int(settings["merge_size"])
        most = int(settings.get("max_video_tokens") or 768) if settings.get("cap_pixels_per_frame") else None
        return PixelBudget(int(low), int(high), multiple, frame_tokens=most)
    size = settings["size"]
    if isinstance(size, int):
        return size
    if isinstance(size, dict) and set(size) == {"shortest_edge"}:
        return int(size["shortest_edge"])
    if "max_image_size" in settings and set(size) == {"longest_edge"}:
        return LongestEdge(int(size["longest_edge"]))
    return _pair(size)


def _sides(size: Size) -> tuple[int, ...]:
    if isinstance(size, PixelBudget):
        return size.low, size.high, size.multiple
    if isinstance(size, LongestEdge):
        return (size.side,)
    return (size,) if isinstance(size, int) else size or ()


def _three(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _pair(size: Any) -> tuple[int, int]:
    """(height, width) from {"height": …, "width": …} or one side of a square."""
    return (size, size) if isinstance(size, int) else (int(size["height"]), int(size["width"]))
