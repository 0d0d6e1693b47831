"""Visual token compression: N rows become M, each with the position of one of the original rows.

                M             a row is                             position
    TextOnly    0             —                                    —
    Pool        ⌈N / s⌉       the mean of s rows in a row          the last of them
    Conv        ⌈N / s⌉       a learned mix of s rows in a row     the last of them
    Prune       ⌈N / s⌉       one of the rows, unchanged           its own
    Resampler   number of     attention of a learned query over    the last M, as in ViSpec
                queries       all rows

Rows are in the order in which the target reads them, frame after frame: neighbours in that order are pooled and mixed,
whatever the layout of a frame. Positions are for rotary embeddings only.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.checks import whole
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.layers import split_heads

Compressed = tuple[Tensor, Tensor]  # rows [B, M, H] and their positions [M], ascending
Keep = Literal["uniform", "random"]


class TextOnly(nn.Module):
    """A compressor that keeps nothing."""

    def forward(self, rows: Tensor) -> Compressed:
        """[B, N, H] -> [B, 0, H] and no positions."""
        return rows[:, :0], torch.arange(0, device=rows.device)


class Pool(nn.Module):
    """Means of every `stride` consecutive rows; the last mean is of the rows that are left."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = whole("A pool's stride", stride)

    def forward(self, rows: Tensor) -> Compressed:
        """[B, N, H] -> [B, ⌈N / stride⌉, H] and their positions."""
        means = F.avg_pool1d(rows.transpose(1, 2), self.stride, self.stride, ceil_mode=True)
        return means.transpose(1, 2), ends(rows, self.stride)


class Conv(nn.Module):
    """A depthwise convolution over `stride` rows at a time, then one linear map; begins as `Pool`.

    A full convolution would have stride² · H² weights (SpecVLM: Huang et al. 2025); this has stride · H + H².
    """

    def __init__(self, hidden_size: int, stride: int) -> None:
        super().__init__()
        self.stride = whole("A convolution's stride", stride)
        self.depthwise = nn.Conv1d(hidden_size, hidden_size, stride, stride, groups=hidden_size, bias=False)
        self.pointwise = nn.Linear(hidden_size, hidden_size)
        nn.init.constant_(self.depthwise.weight, 1 / stride)
        nn.init.eye_(self.pointwise.weight)
        nn.init.zeros_(self.pointwise.bias)

    def forward(self, rows: Tensor) -> Compressed:
        """[B, N, H] -> [B, ⌈N / stride⌉, H] and their positions; zeros stand after the last row."""
        padded = F.pad(rows.transpose(1, 2), (0, -rows.shape[1] % self.stride))
        return self.pointwise(self.depthwise(padded).transpose(1, 2)), ends(rows, self.stride)


class Prune(nn.Module):
    """One row of every `ratio`: evenly spread, or drawn at random but the same for all clips of one length."""

    def __init__(self, ratio: int, keep: Keep = "uniform") -> None:
        super().__init__()
        self.ratio = whole("A pruning ratio", ratio)
        if keep not in ("uniform", "random"):
            raise CrossdraftError(f"Visual tokens are pruned 'uniform' or 'random', not '{keep}'.")
        self.keep = keep

    def forward(self, rows: Tensor) -> Compressed:
        """[B, N, H] -> [B, ⌈N / ratio⌉, H] and their positions."""
        total = rows.shape[1]
        choose = spread if self.keep == "uniform" else drawn
        positions = choose(total, -(-total // self.ratio)).to(rows.device)
        return rows[:, positions], positions


class Resampler(nn.Module):
    """Learned queries that attend to all rows at once (Q-Former's last step; ViSpec's adaptor): 3 H² + M H weights."""

    def __init__(self, hidden_size: int, queries: int, heads: int, *, bias: bool = False) -> None:
        super().__init__()
        if hidden_size % heads:
            raise CrossdraftError(f"A resampler of {heads} heads cannot share {hidden_size} features evenly.")
        self.head_dim = hidden_size // heads
        self.queries = nn.Parameter(torch.empty(whole("A resampler's queries", queries), hidden_size))
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.normal_(self.queries, std=self.head_dim**-0.5)

    def forward(self, rows: Tensor) -> Compressed:
        """[B, N, H] -> [B, M, H] and their positions."""
        query = split_heads(self.queries[None].expand(len(rows), -1, -1), self.head_dim)
        key, value = split_heads(self.k_proj(rows), self.head_dim), split_heads(self.v_proj(rows), self.head_dim)
        found = self.o_proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        total, count = rows.shape[1], found.shape[1]
        return found, torch.arange(total - count, total, device=rows.device).clamp(min=0)


def spread(total: int, count: int) -> Tensor:
    """[count] positions of `total`, evenly spread: the middle of each interval.

    >>> spread(8, 2), spread(5, 3)
    (tensor([2, 6]), tensor([0, 2, 4]))
    """
    return (2 * torch.arange(count) + 1) * total // (2 * max(count, 1))


def drawn(total: int, count: int) -> Tensor:
    """[count] positions of `total`, drawn at random with a fixed seed, ascending."""
    return torch.randperm(total, generator=torch.Generator().manual_seed(total))[:count].sort().values


def ends(rows: Tensor, stride: int) -> Tensor:
    """[⌈N / stride⌉] the last position of every `stride` of [B, N, H] rows."""
    total = rows.shape[1]
    return (torch.arange(0, total, stride, device=rows.device) + stride - 1).clamp(max=total - 1)
