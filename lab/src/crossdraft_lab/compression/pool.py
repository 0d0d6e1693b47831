"""Pooled frames: each frame's grid of patches is downsampled before the language model. LOSSY.

It is where TokenPacker (Li et al. 2024) makes its queries: the grid interpolated to a fraction of its side, bilinearly;
with an even side and a factor of 2, means of two by two patches. TokenPacker then has each query attend to the patches
that it stands for, by weights that are trained (`packer`). This needs no training, and shows what the number of tokens
alone costs. A class token stays as it is. Each token keeps the position of the patch in the middle of those that it
stands for, and text after the clip its own.
"""

import copy
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.weak import weakly
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Limit, check_settings
from crossdraft_lab.align.predicted import stretched_positions

FACTOR = Limit("a whole number of 2 or more", lambda value: value >= 2)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Factor by which frames are pooled.

    Args:
        factor: of a frame's side.

    Raises:
        CrossdraftError: a factor that leaves everything.
    """

    factor: Annotated[int, FACTOR] = 2

    def __post_init__(self) -> None:
        check_settings(self, "pool", "compression")


@dataclass(frozen=True, slots=True)
class FrameGrid:
    """A frame's tokens: perhaps a class token, then `side` x `side` patches."""

    side: int
    class_token: bool

    @property
    def tokens(self) -> int:
        """Number of tokens of a frame."""
        return self.side**2 + self.class_token

    def pooled(self, factor: int) -> "FrameGrid":
        """The grid after pooling."""
        return FrameGrid(self.side // factor, self.class_token)

    def places(self, frames: int, factor: int) -> Tensor:
        """[frames * pooled tokens] where the pooled tokens of frames stand among all, each in the middle of its region.

        >>> FrameGrid(2, True).places(2, 2).tolist(), FrameGrid(7, False).places(1, 2).tolist()
        ([0, 1, 5, 6], [8, 10, 12, 22, 24, 26, 36, 38, 40])
        """
        starts, width = region_starts(self.side, factor)
        middle = starts + (width - 1) // 2
        first = int(self.class_token)
        own = torch.cat((torch.arange(first), first + (middle[:, None] * self.side + middle).flatten()))
        return (torch.arange(frames)[:, None] * self.tokens + own).flatten()

    def pool(self, rows: Tensor, factor: int) -> Tensor:
        """[F * tokens, E] features of frames -> those of the pooled grid.

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
    """[side // factor] where regions begin along a side, and how wide each is.

    They are of one size and evenly spread, and cover the side; they overlap where the factor does not divide it.

    >>> region_starts(4, 2), region_starts(7, 2)
    ((tensor([0, 2]), 2), (tensor([0, 2, 4]), 3))
    """
    count = side // factor
    width = -(-side // count)
    return torch.arange(count) * (side - width) // max(1, count - 1), width


@dataclass(frozen=True)
class PooledPrompt(Prompt):
    """A prompt with fewer placeholders.

    Args:
        places: where they stand among the frames' tokens.
        length: how many those are.
    """

    places: Tensor = field(default_factory=lambda: torch.empty(0))
    length: int = 0


class GridTarget(Target):
    """A target that sees fewer tokens of each frame; which, its subclasses say.

    Args:
        target: which sees all of them.

    Raises:
        CrossdraftError: its clips are not encoded beforehand as frames of one grid of patches.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(
            target.model,
            weakly(self._prepare_fewer),
            target.text,
            tuple(target.eos),
            tuple(target.reserved),
            target.defaults,
        )
        self._whole = target
        vision: Any = getattr(self.model.config, "vision_config", None)
        size, patch = getattr(vision, "image_size", None), getattr(vision, "patch_size", None)
        if not self.traits.takes_encoded or self.traits.mrope or not (isinstance(size, int) and isinstance(patch, int)):
            raise CrossdraftError(
                f"Frames of {type(self.model).__name__} are no grid of patches of one size; choose another compression."
            )
        self.side = size // patch

    def places(self, grid: FrameGrid, frames: int) -> Tensor:
        """[M] where the tokens that are left stand among all of so many frames."""
        raise NotImplementedError

    def _prepare_fewer(self, request: Request) -> Prompt:
        """The prompt with as many placeholders as tokens are left of each clip."""
        prompt = self._whole.prepare(request)
        visual = torch.isin(prompt.input_ids, torch.tensor(sorted(self.traits.visual_ids)).to(prompt.input_ids))
        count = int(visual.sum())
        if not count:
            return prompt
        if len(prompt.items) > 1:
            raise CrossdraftError("A target of fewer visual tokens reads one clip or image a request; ask about one.")
        grid = self._grid(count)
        at = visual.nonzero().flatten()
        if int(at[-1] - at[0]) + 1 != count:
            raise CrossdraftError(
                "A target of fewer visual tokens reads a clip as one run of them, and here is text between frames."
            )
        places = self.places(grid, count // grid.tokens)
        kept = ~visual
        kept[at[: len(places)]] = True
        return PooledPrompt(prompt.input_ids[kept], prompt.features, prompt.notes, places=places, length=count)

    def _positions(self, prompt: Prompt) -> tuple[Tensor | None, int]:
        if not isinstance(prompt, PooledPrompt):
            return super()._positions(prompt)
        return stretched_positions(prompt.input_ids, self.traits.visual_ids, prompt.places, prompt.length)

    def _grid(self, tokens: int) -> FrameGrid:
        """The grid of frames that have so many tokens together."""
        for class_token in (True, False):
            if tokens % (grid := FrameGrid(self.side, class_token)).tokens == 0:
                return grid
        raise CrossdraftError(
            f"{tokens} visual tokens are no frames of {self.side} x {self.side} patches; choose another compression."
        )


class PooledTarget(GridTarget):
    """A target that sees each frame smaller.

    Raises:
        CrossdraftError: as `GridTarget`, or a frame has fewer patches than are pooled.
    """

    def __init__(self, target: Target, settings: PoolSettings) -> None:
        super().__init__(target)
        self.factor = settings.factor
        if self.side < self.factor:
            raise CrossdraftError(f"A frame has {self.side} x {self.side} patches; pool by a factor of at most that.")

    def places(self, grid: FrameGrid, frames: int) -> Tensor:
        return grid.places(frames, self.factor)

    @torch.inference_mode()
    def encode(self, prompt: Prompt) -> Encoded:
        """The visual features, pooled."""
        return {kind: self._pooled(features) for kind, features in super().encode(prompt).items()}

    def _pooled(self, features: Any) -> object:
        rows = visual_rows(features)
        pooled = copy.copy(features)
        pooled.pooler_output = self._grid(len(rows)).pool(rows, self.factor)
        return pooled
