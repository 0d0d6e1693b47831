"""Pooled frames: each frame's grid of patches is downsampled before the language model. LOSSY.

TokenPacker (Li et al. 2024) makes its queries in this way: the grid is interpolated to a fraction of its side,
bilinearly; with an even side and a factor of 2 these are means of two by two patches. TokenPacker then lets each query
attend to its patches by trained weights (`packer`). Pooling needs no training, and shows the loss due to the number of
tokens alone. A class token stays unchanged. Each token keeps the position of the patch in the middle of its region, and
text after the clip keeps its own.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Limit, check_settings
from crossdraft_lab.align.predicted import stretched_positions

FACTOR = Limit("a whole number of 2 or more", lambda value: value >= 2)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Factor by which frames are pooled.

    Args:
        factor: factor by which a frame's side is reduced.

    Raises:
        CrossdraftError: a factor that does not reduce the frame.
    """

    factor: Annotated[int, FACTOR] = 2

    def __post_init__(self) -> None:
        check_settings(self, "pool", "compression")


@dataclass(frozen=True, slots=True)
class FrameGrid:
    """Grid of a frame's tokens: perhaps a class token, then `side` x `side` patches."""

    side: int
    class_token: bool

    @property
    def tokens(self) -> int:
        """Number of tokens of a frame."""
        return self.side**2 + self.class_token

    def places(self, frames: int, factor: int) -> Tensor:
        """Places [frames * pooled tokens] of the pooled tokens among all tokens, each in the middle of its region.

        >>> FrameGrid(2, True).places(2, 2).tolist(), FrameGrid(7, False).places(1, 2).tolist()
        ([0, 1, 5, 6], [8, 10, 12, 22, 24, 26, 36, 38, 40])
        """
        starts, width = region_starts(self.side, factor)
        middle = starts + (width - 1) // 2
        first = int(self.class_token)
        own = torch.cat((torch.arange(first), first + (middle[:, None] * self.side + middle).flatten()))
        return (torch.arange(frames)[:, None] * self.tokens + own).flatten()

    def pool(self, rows: Tensor, factor: int) -> Tensor:
        """Pool features [F * tokens, E] of frames to those of the smaller grid.

        >>> FrameGrid(2, True).pool(torch.tensor([[9.0], [1], [2], [3], [6]]), 2).flatten().tolist()
        [9.0, 3.0]
        """
        first = int(self.class_token)
        frames = rows.reshape(-1, self.tokens, rows.shape[-1])
        grid = frames[:, first:].transpose(1, 2).unflatten(2, (self.side, self.side))
        side = self.side // factor
        small = F.interpolate(grid.float(), size=(side, side), mode="bilinear").to(rows.dtype)
        return torch.cat((frames[:, :first], small.flatten(2).transpose(1, 2)), 1).flatten(0, 1)


def region_starts(side: int, factor: int) -> tuple[Tensor, int]:
    """Starts [side // factor] of the regions along a side, and their width.

    Regions have one size, are evenly spread, and cover the side; they overlap if the factor does not divide the side.

    >>> region_starts(4, 2), region_starts(7, 2)
    ((tensor([0, 2]), 2), (tensor([0, 2, 4]), 3))
    """
    count = side // factor
    width = -(-side // count)
    return torch.arange(count) * (side - width) // max(1, count - 1), width


class GridPrompt:
    """Converts a request into a prompt with only as many placeholders as tokens are left of each frame.

    Args:
        target: target that reads all tokens of a frame.
        places: returns the [M] places of the tokens that are left, among those of all frames of a grid. Features may
            have other places, as an attribute `places`.

    Raises:
        CrossdraftError: the target's clips are not encoded beforehand as frames of one grid of patches.
    """

    def __init__(self, target: Target, places: Callable[[FrameGrid, int], Tensor]) -> None:
        vision: Any = getattr(target.model.config, "vision_config", None)
        size, patch, traits = getattr(vision, "image_size", None), getattr(vision, "patch_size", None), target.traits
        if not traits.takes_encoded or traits.mrope or not (isinstance(size, int) and isinstance(patch, int)):
            raise CrossdraftError(
                f"Frames of {type(target.model).__name__} are no grid of patches of one size; choose another "
                "compression."
            )
        self.side = size // patch
        self._whole, self._visual, self._places = target.prepare, traits.visual_ids, places

    def __call__(self, request: Request) -> Prompt:
        prompt = self._whole(request)
        visual = torch.isin(prompt.input_ids, torch.tensor(sorted(self._visual)).to(prompt.input_ids))
        count = int(visual.sum())
        if not count:
            return prompt
        if len(prompt.items) > 1:
            raise CrossdraftError("A target of fewer visual tokens reads one clip or image a request; ask about one.")
        grid = self.grid(count)
        at = visual.nonzero().flatten()
        if int(at[-1] - at[0]) + 1 != count:
            raise CrossdraftError(
                "A target of fewer visual tokens reads a clip as one run of them, and here is text between frames."
            )
        places = self._places(grid, count // grid.tokens)
        kept = ~visual
        kept[at[: len(places)]] = True
        ids = prompt.input_ids[kept]

        def positions(encoded: Encoded | None) -> tuple[Tensor, int]:
            own = getattr((encoded or {}).get("video"), "places", places)
            return stretched_positions(ids, self._visual, own, count)

        return Prompt(ids, prompt.features, prompt.notes, positions=positions)

    def grid(self, tokens: int) -> FrameGrid:
        """Find the grid of a frame if whole frames of it make `tokens` tokens."""
        for class_token in (True, False):
            if tokens % (grid := FrameGrid(self.side, class_token)).tokens == 0:
                return grid
        raise CrossdraftError(
            f"{tokens} visual tokens are no frames of {self.side} x {self.side} patches; choose another compression."
        )


def pooled_prompt(target: Target, factor: int) -> GridPrompt:
    """Make a prompt function for frames that are smaller by a factor.

    Raises:
        CrossdraftError: as `GridPrompt`, or a frame has fewer patches than the factor.
    """
    made = GridPrompt(target, lambda grid, frames: grid.places(frames, factor))
    if made.side < factor:
        raise CrossdraftError(f"A frame has {made.side} x {made.side} patches; pool by a factor of at most that.")
    return made


def pooled_target(target: Target, settings: PoolSettings) -> Target:
    """Make a target that reads each frame pooled; errors as `pooled_prompt`."""
    prepare = pooled_prompt(target, settings.factor)

    def pooled(features: Any) -> object:
        rows, smaller = visual_rows(features), copy.copy(features)
        smaller.pooler_output = prepare.grid(len(rows)).pool(rows, settings.factor)
        return smaller

    def encode(prompt: Prompt) -> Encoded:
        return {kind: pooled(features) for kind, features in target.encode(prompt).items()}

    return target.reading(prepare, encode)
