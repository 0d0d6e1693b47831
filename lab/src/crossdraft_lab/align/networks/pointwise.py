"""Adapters whose prediction at a position depends on that position alone.

`l1`, `l2` and `l3` are those of the project xifan-zhang/EventGPT, with a projection in front where widths differ.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.specs import Count
from crossdraft_lab.align.networks.base import Adapter, AdapterConfig, Past

ALPHA = 0.1  # initial weight of a residual block


class NoAdapter(Adapter):
    """The control: the drafter's feature, padded with zeros or cut off, serves as the target's; nothing is learned."""

    def __init__(self, config: AdapterConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.project.requires_grad_(False)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self.project(source), ()


class LinearAdapter(Adapter):
    """Linear map W·h + b of the drafter's feature h."""

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self.project(source), ()


@dataclass(frozen=True, kw_only=True)
class WidthConfig(AdapterConfig):
    """An adapter with an inner layer.

    Args:
        width: width of the inner layer.
        blocks: number of successive blocks.
    """

    width: Count
    blocks: Count = 1


class MLPAdapter(Adapter):
    """project(h) + out(GELU(up(h))), `out` is zero at first."""

    config_class = WidthConfig

    def __init__(self, config: WidthConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.up_proj = nn.Linear(self.project.in_features, config.width)
        self.out_proj = nn.Linear(config.width, config.hidden_size)
        nn.init.zeros_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self.project(source) + self.out_proj(F.gelu(self.up_proj(source))), ()


class FusedAdapter(MLPAdapter):
    """`levels`: `MLPAdapter` on several layers of the drafter side by side (EAGLE-3: Li et al. 2025)."""

    fuses = True


class ResidualBlock(nn.Module):
    """x + α · up(GELU(down(LN(x)))), `up` is zero at first; with `inner_norm` the norm stands in front of the GELU."""

    def __init__(self, size: int, width: int, *, inner_norm: bool = False) -> None:
        super().__init__()
        self.norm = nn.Identity() if inner_norm else nn.LayerNorm(size)
        self.down_proj = nn.Linear(size, width, bias=False)
        self.inner_norm = nn.LayerNorm(width) if inner_norm else nn.Identity()
        self.up_proj = nn.Linear(width, size, bias=False)
        self.alpha = nn.Parameter(torch.tensor(ALPHA))
        nn.init.zeros_(self.up_proj.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        inner = F.gelu(self.inner_norm(self.down_proj(self.norm(rows))))
        return rows + self.alpha * self.up_proj(inner)


class Bottleneck(Adapter):
    """`l1`: project(h), one residual bottleneck, a norm. `l2`: three of them."""

    config_class = WidthConfig
    wide = False

    def __init__(self, config: WidthConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.blocks = residual_blocks(config.hidden_size, config.width, config.blocks, wide=self.wide)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self.blocks(self.project(source)), ()


class Wide(Bottleneck):
    """`l3`: a norm, three wider blocks with a norm inside each, and a norm."""

    wide = True


def residual_blocks(size: int, width: int, count: int, *, wide: bool) -> nn.Sequential:
    """The blocks of `l1` and `l2`, or of `l3`, between their norms."""
    blocks = [ResidualBlock(size, width, inner_norm=wide) for _ in range(count)]
    return nn.Sequential(nn.LayerNorm(size) if wide else nn.Identity(), *blocks, nn.LayerNorm(size))
