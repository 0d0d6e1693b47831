"""TokenPacker (Li et al. 2024): a frame's patches are packed into fewer tokens by region-to-point attention.

    vision encoder   [F, P, L·S]   features of L layers of the P tokens of each frame, the projector's own layer last
    queries          [M, S]        that last layer's grid of patches, made coarse by bilinear interpolation
    keys, values     [R, L·S]      all L layers of the R patches of the query's region
    packed           [F, M, H]     mlp(attention): the M tokens of each frame, in place of its P

If the factor does not divide the side, which the authors refuse, regions overlap: 7 x 7 patches have nine regions of
3 x 3 with a factor of 2. A class token, which the authors leave out, goes through the projector alone.
"""

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.specs import Count
from crossdraft_lab.compression.pool import FrameGrid, region_starts

STD = 0.02  # standard deviation of the initial weights


@dataclass(frozen=True, kw_only=True)
class TokenPackerConfig(HeadConfig):
    """Settings of the network; `hidden_size`, `vocab_size` and `num_layers` are the target's.

    Args:
        source_size: S, features of a layer of the target's vision encoder.
        levels: hidden states of the encoder that are read, ascending; the target's projector reads the last.
        side: number of patches along a side of a frame.
        class_token: true if a frame has a class token in front of its patches.
        factor: factor by which a frame's side is reduced.
        heads: number of heads of the attention; the authors' heads have 128 features.

    Raises:
        CrossdraftError: as `HeadConfig`, levels that do not ascend, heads that do not divide the features, or a factor
            that leaves nothing.
    """

    source_size: Count
    levels: tuple[int, ...]
    side: Count
    class_token: bool
    heads: Count
    factor: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = list(self.levels)
        if not levels or levels[0] < 0 or levels != sorted(set(levels)):
            raise CrossdraftError(f"A packer's levels must be one or more hidden states that ascend; not {levels}.")
        if self.source_size % self.heads:
            raise CrossdraftError(f"{self.heads} attention heads do not divide {self.source_size} features.")
        if not 1 < self.factor <= self.side:
            raise CrossdraftError(f"A frame of {self.side} x {self.side} patches cannot be packed by {self.factor}.")

    @property
    def grid(self) -> FrameGrid:
        """Grid of a frame's patches."""
        return FrameGrid(self.side, self.class_token)


class TokenPacker(Head):
    """TokenPacker's network: packs each frame's patches into fewer tokens; see the module's docstring."""

    config_class = TokenPackerConfig
    config: TokenPackerConfig
    owns_head = False

    def __init__(self, config: TokenPackerConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.register_buffer("embeddings", self.embeddings[:0], persistent=False)
        size, read = config.source_size, len(config.levels) * config.source_size
        norm = partial(nn.LayerNorm, size, eps=1e-6)
        self.query_proj, self.query_norm = nn.Linear(size, size, bias=False), norm()
        self.key_proj, self.key_norm = _two_layers(read, size), norm()
        self.value_proj, self.value_norm = _two_layers(read, size), norm()
        self.attention = nn.MultiheadAttention(size, config.heads, batch_first=True)
        self.mlp = _two_layers(size, config.hidden_size)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.lm_head:
                nn.init.trunc_normal_(module.weight, std=STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.register_buffer("regions", regions(config.side, config.factor), persistent=False)
        self.regions: Tensor

    @property
    def reads(self) -> tuple[int, ...]:
        return ()

    @torch.no_grad()
    def begin_at(self, projector: nn.Module) -> None:
        """Copy the weights of the target's own projector, if it has two linear layers of the same shapes."""
        theirs = [module for module in projector.modules() if isinstance(module, nn.Linear)]
        own = [cast("nn.Linear", self.mlp[0]), cast("nn.Linear", self.mlp[2])]
        if [one.weight.shape for one in theirs] == [one.weight.shape for one in own]:
            for mine, one in zip(own, theirs, strict=True):
                mine.load_state_dict(one.state_dict(), strict=False)

    def predict(self, source: Tensor) -> Tensor:
        """Features [B, F, P, L·S] -> [B, K, H] visual tokens of the target, K of all F frames."""
        frames, first = source.flatten(0, 1), int(self.config.class_token)
        points = self.attend(frames[:, first:])
        classes = frames[:, :first, -self.config.source_size :]
        return self.mlp(torch.cat((classes, points), 1)).unflatten(0, source.shape[:2]).flatten(1, 2)

    def attend(self, patches: Tensor) -> Tensor:
        """Pack frames by attention: [n, side², L·S] -> [n, M, S]."""
        size, side = self.config.source_size, self.config.side
        coarse = FrameGrid(side, class_token=False).pool(patches[..., -size:].flatten(0, 1), self.config.factor)
        query = self.query_norm(self.query_proj(coarse))[:, None]  # [n·M, 1, S]
        key, value = self.key_norm(self.key_proj(patches)), self.value_norm(self.value_proj(patches))
        key, value = (one[:, self.regions].flatten(0, 1) for one in (key, value))  # [n·M, R, S]
        found = self.attention(query, key, value, need_weights=False)[0]
        return found[:, 0].unflatten(0, (len(patches), -1))


def regions(side: int, factor: int) -> Tensor:
    """Patches [M, R] of each region of a grid; regions and patches are numbered row by row.

    Regions are squares of one size, evenly spread; they tile the grid where the factor divides its side.

    >>> regions(4, 2).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    """
    starts, width = region_starts(side, factor)
    rows = (starts[:, None] + torch.arange(width))[:, None, :, None]
    columns = (starts[:, None] + torch.arange(width))[None, :, None, :]
    return (rows * side + columns).flatten(2).flatten(0, 1)


def _two_layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.GELU(), nn.Linear(outputs, outputs))
