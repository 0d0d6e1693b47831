"""Adapters whose prediction at a position depends on that position alone.

`l1`, `l2` and `l3` are those of the project xifan-zhang/EventGPT, with a projection in front where widths differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.align.networks.base import Adapter, AdapterConfig, Past
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.specs import Count

ALPHA = 0.1  # what a residual block is weighted by at first


class NoAdapter(Adapter):
    """The control: the drafter's feature, padded with zeros or cut off, stands for the target's; nothing is learned."""

    def __init__(self, config: AdapterConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.project.requires_grad_(False)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self.project(source), ()


class LinearAdapter(Adapter):
    """W·h + b."""

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self.project(source), ()


@dataclass(frozen=True, kw_only=True)
class WidthConfig(AdapterConfig):
    """An adapter with an inner layer.

    Args:
        width: of that.
        blocks: how many follow one another.
    """

    width: Count
    blocks: Count = 1


class MLPAdapter(Adapter):
    """project(h) + out(GELU(up(h))), `out` is zero at first."""

    config_class = WidthConfig
    config: WidthConfig

    def __init__(self, config: WidthConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.up_proj = nn.Linear(self.project.in_features, config.width)
        self.out_proj = nn.Linear(config.width, config.hidden_size)
        nn.init.zeros_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self.project(source) + self.out_proj(F.gelu(self.up_proj(source))), ()


class ResidualBlock(nn.Module):
    """x + α · up(GELU(down(LN(x)))), `up` is zero at first; `inner_norm`: a norm before the GELU."""

    def __init__(self, size: int, width: int, *, inner_norm: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.down_proj = nn.Linear(size, width)
        self.inner_norm = nn.LayerNorm(width) if inner_norm else nn.Identity()
        self.up_proj = nn.Linear(width, size)
        self.alpha = nn.Parameter(torch.tensor(ALPHA))
        nn.init.zeros_(self.up_proj.weight)
        nn.init.zeros_(self.up_proj.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        inner = F.gelu(self.inner_norm(self.down_proj(self.norm(rows))))
        return rows + self.alpha * self.up_proj(inner)


class Bottleneck(Adapter):
    """`l1`: project(h), one residual bottleneck, a norm. `l2`: three of them."""

    config_class = WidthConfig
    config: WidthConfig
    inner_norm = False

    def __init__(self, config: WidthConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        size, width = config.hidden_size, config.width
        self.blocks = nn.ModuleList(
            [ResidualBlock(size, width, inner_norm=self.inner_norm) for _ in range(config.blocks)]
        )
        self.norm = nn.LayerNorm(size)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        rows = self.project(source)
        for block in cast("Sequence[ResidualBlock]", self.blocks):
            rows = block(rows)
        return self.norm(rows), ()


class Wide(Bottleneck):
    """`l3`: three wider blocks, with a norm inside each."""

    inner_norm = True
