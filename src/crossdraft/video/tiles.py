"""An image cut into tiles, in pure torch, as HF's image processors do it with PIL."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from crossdraft.video.preprocess import normalise, preprocess, resize
from crossdraft.video.spec import AnyResolution, FrameSpec, NearestGrid, Sides


@dataclass(frozen=True, slots=True)
class Tiles:
    """An image prepared for a vision encoder.

    Args:
        pixels: float32 [N, 3, h, w], the whole image among them.
        grid: (rows, columns) of its tiles, (0, 0) if it was not cut.
        size: (height, width) of the original image.
    """

    pixels: Tensor
    grid: Sides
    size: Sides


def cut(image: Tensor, spec: FrameSpec) -> Tiles:
    """Cut uint8 RGB [1, H, W, 3] into tiles, resized and normalised; one tile if the spec has no rule for tiles.

    Raises:
        CrossdraftError: as `preprocess`.
    """
    size = (image.shape[1], image.shape[2])
    side = _tile(spec)
    if spec.tiles is None or side is None:
        return Tiles(preprocess(image, spec), (0, 0), size)
    pixels = image.movedim(-1, 1)
    if isinstance(spec.tiles, NearestGrid):
        found, grid = _by_grid(pixels, side, spec, spec.tiles)
    elif isinstance(spec.tiles, AnyResolution):
        found, grid = _by_canvas(pixels, side, spec, spec.tiles)
    else:
        found, grid = _by_splits(pixels, side, spec)
    return Tiles(normalise(found, spec), grid, size)


def _tile(spec: FrameSpec) -> Sides | None:
    """Size (height, width) of a tile, which is the final size of every frame."""
    side = spec.crop or spec.squeeze or spec.size
    if isinstance(side, int):
        return side, side
    return side if isinstance(side, tuple) else None


def _by_grid(pixels: Tensor, side: Sides, spec: FrameSpec, rule: NearestGrid) -> tuple[Tensor, Sides]:
    """Cut by InternVL's rule: stretched over a grid; the whole image follows its tiles, if there are several."""
    rows, columns = nearest_grid((pixels.shape[-2], pixels.shape[-1]), side, rule)
    tiles = _divided(resize(pixels, (rows * side[0], columns * side[1]), spec.resample), side)
    whole = [] if len(tiles) == 1 else [resize(pixels, side, spec.resample)]
    return torch.cat([tiles, *whole]), (rows, columns)


def _by_splits(pixels: Tensor, side: Sides, spec: FrameSpec) -> tuple[Tensor, Sides]:
    """Cut by SmolVLM's rule: resized, stretched to whole tiles; the whole image follows them, if there are several."""
    pixels = resize(pixels, spec.size, spec.resample)
    pixels = resize(pixels, _multiples(pixels.shape[-2], pixels.shape[-1], side[0]), spec.resample)
    tiles = _divided(pixels, side)
    if len(tiles) == 1:
        return tiles, (0, 0)
    whole = resize(pixels, side, spec.resample)
    return torch.cat([tiles, whole]), (pixels.shape[-2] // side[0], pixels.shape[-1] // side[1])


def _by_canvas(pixels: Tensor, side: Sides, spec: FrameSpec, rule: AnyResolution) -> tuple[Tensor, Sides]:
    """Cut by LLaVA-NeXT's rule: the whole image, then the tiles of a canvas with the image between black bars."""
    size = (pixels.shape[-2], pixels.shape[-1])
    canvas = best_canvas(size, rule)
    inner = _fitted(size, canvas)
    top, left = (canvas[0] - inner[0]) // 2, (canvas[1] - inner[1]) // 2
    bars = (left, canvas[1] - inner[1] - left, top, canvas[0] - inner[0] - top)
    tiles = _divided(F.pad(resize(pixels, inner, spec.resample), bars), side)
    grid = (canvas[0] // side[0], canvas[1] // side[1])
    return torch.cat([resize(pixels, side, spec.resample), tiles]), grid


def _divided(pixels: Tensor, side: Sides) -> Tensor:
    """Divide [1, 3, rows * h, columns * w] into [rows * columns, 3, h, w], row by row."""
    rows, columns = pixels.shape[-2] // side[0], pixels.shape[-1] // side[1]
    parts = pixels.reshape(3, rows, side[0], columns, side[1])
    return parts.permute(1, 3, 0, 2, 4).reshape(rows * columns, 3, *side)


def nearest_grid(size: Sides, side: Sides, rule: NearestGrid) -> Sides:
    """Grid (rows, columns) whose aspect is nearest to the image's; of equal ones the largest that it half fills.

    >>> nearest_grid((400, 800), (448, 448), NearestGrid(1, 12)), nearest_grid((900, 1800), (448, 448), NearestGrid())
    ((1, 2), (2, 4))
    """
    pairs = ((columns, rows) for columns in range(1, rule.most + 1) for rows in range(1, rule.most + 1))
    grids = sorted((pair for pair in pairs if rule.least <= math.prod(pair) <= rule.most), key=math.prod)
    aspect, best, least = size[1] / size[0], (1, 1), math.inf
    for columns, rows in grids:
        off = abs(aspect - columns / rows)
        enough = math.prod(size) > 0.5 * math.prod(side) * columns * rows
        if off < least or (off == least and enough):
            best, least = (rows, columns), off
    return best


def _multiples(height: int, width: int, side: int) -> Sides:
    """Round the longer edge up to a multiple of `side`, scale the other one with it, and round that up, too."""
    aspect = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return math.ceil(int(width / aspect) / side) * side, width
    height = math.ceil(height / side) * side
    return height, math.ceil(int(height * aspect) / side) * side


def best_canvas(size: Sides, rule: AnyResolution) -> Sides:
    """Canvas (height, width) that keeps the most pixels of an image; of equal ones the one with the smallest bars.

    >>> best_canvas((400, 800), AnyResolution(((336, 672), (672, 336), (672, 672))))
    (336, 672)
    """

    def kept(canvas: Sides) -> tuple[int, int]:
        scale = min(canvas[1] / size[1], canvas[0] / size[0])
        seen = min(int(size[1] * scale) * int(size[0] * scale), math.prod(size))
        return seen, seen - math.prod(canvas)

    return max(rule.canvases, key=kept)


def _fitted(size: Sides, canvas: Sides) -> Sides:
    """Size (height, width) of the largest image of this aspect on a canvas, edges rounded up."""
    by_height, by_width = canvas[0] / size[0], canvas[1] / size[1]
    if by_width < by_height:
        return min(math.ceil(size[0] * by_width), canvas[0]), canvas[1]
    return canvas[0], min(math.ceil(size[1] * by_height), canvas[1])
