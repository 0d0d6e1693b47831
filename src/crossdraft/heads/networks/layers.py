"""Decoder layers that heads are built from. An `Attend` decides which positions attend to which.

In training it is `TTTAttention` over a whole text (EAGLE-3's training-time test); while drafting it is
`drafting.attention.CachedAttention` over a KV cache and a tree mask. The layers are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import HeadConfig
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(HeadConfig):
    """A head with decoder layers.

    Args:
        heads, kv_heads, head_dim: sizes of its attention.
        intermediate_size: inner width of its gated MLP.
        rope_theta, max_positions: base and number of its rotary positions.
        eps: epsilon of its norms.
        steps: steps of the training-time test: number of tokens drafted in a row during training.
        qkv_bias: its queries, keys and values have biases, as Qwen2's.

    Raises:
        CrossdraftError: as `HeadConfig`, heads that are no multiple of kv_heads, or an odd head_dim.
    """

    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate_size: Count
    rope_theta: float = 10000.0
    max_positions: Count = 2048
    eps: float = 1e-6
    steps: Count = 1
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise CrossdraftError(
                f"A head's heads={self.heads} must be a multiple of its kv_heads={self.kv_heads}, which they share."
            )
        if self.head_dim % 2:
            raise CrossdraftError(
                f"A head's head_dim must be even, as rotary positions rotate pairs; {self.head_dim} is odd."
            )


KeyValue = tuple[Tensor, Tensor]  # keys and values


class Attend(Protocol):
    """Attention over projected queries, keys and values, which decides which positions attend to which."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, heads, n, d] queries and [B, kv_heads, n, d] keys and values, none rotated yet -> [B, heads, n, d]."""
        ...


@dataclass(frozen=True)
class PrefixKV:
    """Visual prefix: keys and values before the text, which all of the text attends to.

    They do not depend on the text, so they are computed once. Heads that have one have one layer.

    Args:
        key, value: [B, kv_heads, P, d], not rotated; P may be 0.
        positions: [P] positions of its rows.
        start: position of the text's first row, which is its position after the uncompressed prefix.
        global_feature: [B, 1, H] global visual vector, added to every row of the text (`Autoregressive.add_global`).
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    start: int
    global_feature: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positions)


class RMSNorm(nn.RMSNorm):
    """RMSNorm with its weight in the input's dtype: PyTorch has no fast path for mixed dtypes."""

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021), from a table."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, theta: float, positions: int) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        cos, sin = self._table(positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def lengthen(self, positions: int) -> None:
        """Rebuild the table for `positions` positions; the rows of its earlier positions keep their values."""
        cos, sin = self._table(positions)
        self.cos, self.sin = cos.to(self.cos), sin.to(self.sin)

    def _table(self, positions: int) -> tuple[Tensor, Tensor]:
        speeds = self.theta ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angles = torch.arange(positions, dtype=torch.float64)[:, None] * speeds
        # The first half's sines negated: x·cos + rotate_half(x)·sin = x·cos + roll(x)·sin.
        cos, sin = (angles.cos(), angles.cos()), (-angles.sin(), angles.sin())
        return torch.cat(cos, -1).float(), torch.cat(sin, -1).float()

    def forward(self, heads: Tensor, positions: Tensor) -> Tensor:
        """[..., n, d] rotated by [n] positions."""
        return rotate(heads, *self.cos_sin(positions))

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[n, d] cosines and sines at [n] positions, for `rotate`."""
        return self.cos[positions], self.sin[positions]


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[..., n, d] rotated by `Rotary.cos_sin`."""
    cos, sin = cos.to(heads.dtype), sin.to(heads.dtype)
    return heads * cos + heads.roll(heads.shape[-1] // 2, -1) * sin


class Attention(nn.Module):
    """Query, key, value and output projections; `qkv_bias` gives the first three biases."""

    def __init__(self, config: DecoderConfig, in_features: int | None = None) -> None:
        super().__init__()
        width, self.head_dim = in_features or config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.heads * self.head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(width, config.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(width, config.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.heads * self.head_dim, config.hidden_size, bias=False)
        # A network that norms each head's queries and keys, as Qwen3 does, puts its norms here.
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()

    def forward(self, rows: Tensor, attend: Attend, layer: int = 0) -> Tensor:
        """[B, n, in] -> [B, n, H]."""
        query = self.q_norm(split_heads(self.q_proj(rows), self.head_dim))
        return self.o_proj(attend(layer, query, *self.keys_values(rows)).transpose(1, 2).flatten(2))

    def keys_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, in] -> keys and values [B, kv_heads, n, d]."""
        key = self.k_norm(split_heads(self.k_proj(rows), self.head_dim))
        return key, split_heads(self.v_proj(rows), self.head_dim)


class GatedMLP(nn.Module):
    """down(SiLU(gate(x)) · up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(F.silu(self.gate_proj(rows)) * self.up_proj(rows))


class DecoderLayer(nn.Module):
    """Llama's decoder layer: attention and MLP, each after a norm, with residuals.

    `first_norm=False` leaves out the norm before the attention: EAGLE-1's only layer has none.
    """

    def __init__(self, config: DecoderConfig, *, first_norm: bool = True) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps) if first_norm else nn.Identity()
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(self, stream: Tensor, attend: Attend, layer: int = 0) -> Tensor:
        """[B, n, H] -> [B, n, H]."""
        stream = stream + self.self_attn(self.input_layernorm(stream), attend, layer)
        return stream + self.mlp(self.post_attention_layernorm(stream))

    def keys_values(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, H] -> keys and values [B, kv_heads, n, d]."""
        return self.self_attn.keys_values(self.input_layernorm(stream))


class ResBlock(nn.Module):
    """x + SiLU(Wx + b), W and b zero at first, so that it begins as the identity (Medusa: Cai et al. 2024)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return rows + F.silu(self.linear(rows))


class TTTAttention:
    """Attention of EAGLE-3's training-time test (Li et al. 2025): drafting simulated at every position of a text.

    In step 0 every position t reads the target's own features, causally. In step j it simulates the j-th token of a
    draft that begins at t: it attends to the text up to t and to its own rows of steps 1 … j - 1, not to the drafts of
    other positions. Its rotary position is t + j. All attend to the prefix.
    """

    def __init__(self, rotary: Rotary, prefix: PrefixKV | None = None) -> None:
        self.rotary = rotary
        self.prefix = prefix
        self.step = 0
        self._steps: dict[int, list[KeyValue]] = {}  # layer -> keys and values, step by step

    def at(self, step: int) -> "TTTAttention":
        """Set the step of the calls that follow, and return `self`."""
        self.step = step
        return self

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        steps = self._steps.setdefault(layer, [])
        width, prefix = query.shape[2], self.prefix
        start = self.step + (0 if prefix is None else prefix.start)
        positions = torch.arange(start, start + width, device=query.device)
        groups = query.shape[1] // key.shape[1]
        query, key = self.rotary(query, positions), self.rotary(key, positions)
        if self.step == 0 and prefix is not None:
            key = torch.cat((self.rotary(prefix.key, prefix.positions), key), 2)
            value = torch.cat((prefix.value, value), 2)
        steps.append((key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)))
        if len(steps) == 1 and prefix is None:
            return F.scaled_dot_product_attention(query, steps[0][0], steps[0][1], is_causal=True)
        bias = _bias(prefix, width, query)
        if len(steps) == 1:
            return F.scaled_dot_product_attention(query, *steps[0], attn_mask=bias)
        return _mixed(query * query.shape[-1] ** -0.5, steps, bias)


def _bias(prefix: PrefixKV | None, width: int, like: Tensor) -> Tensor:
    """[1, 1, n, P + n] to be added to scores: the text is seen causally, and all of the prefix."""
    text = like.new_full((1, 1, width, width), float("-inf")).triu_(1)
    return text if prefix is None else F.pad(text, (len(prefix), 0))


def _mixed(query: Tensor, steps: list[KeyValue], bias: Tensor) -> Tensor:
    """Attention of each position to the text up to itself, and to its own draft."""
    (key, value), *own = steps
    text = query @ key.transpose(-1, -2) + bias
    drafted = [(query * drafted_key).sum(-1, keepdim=True) for drafted_key, _ in own]
    weights = torch.cat((text, *drafted), -1).softmax(-1)
    mixed = weights[..., : key.shape[2]] @ value
    for position, (_, drafted_value) in enumerate(own, key.shape[2]):
        mixed = mixed + weights[..., position, None] * drafted_value
    return mixed


def split_heads(rows: Tensor, head_dim: int) -> Tensor:
    """[B, n, heads·d] -> [B, heads, n, d]."""
    return rows.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def concat_layers(hidden: Mapping[int, Tensor], layers: Sequence[int], scales: Sequence[float]) -> Tensor:
    """Multi-layer feature fusion: hidden states [..., H] of each layer, times its scale -> [..., H · layers].

    A residual stream is many times larger than the output of a norm, the more so the deeper: 16 to 27 against 1 in the
    reference target. Unscaled, large layers would dominate the others in the projection that follows. In EAGLE-3, whose
    residual is the result, they would also dominate the token, which enters through the attention alone. A scale is
    about one over the layer's root mean square. Files hold the projection with the scales multiplied in (`columns`), as
    other programs expect it.
    """
    return torch.cat([hidden[layer] * scale for layer, scale in zip(layers, scales, strict=True)], -1)


def columns(matrix: Tensor, scales: Sequence[float]) -> Tensor:
    """[in] the scale of each column of the matrix [out, in] that reads `concat_layers`."""
    return matrix.new_tensor(scales).repeat_interleave(matrix.shape[1] // len(scales))


def check_scales(scales: Sequence[float], count: int) -> None:
    """Check `level_scales`.

    Raises:
        CrossdraftError: they are not `count` positive numbers.
    """
    if len(scales) != count or min(scales) <= 0:
        raise CrossdraftError(f"level_scales are {count} positive numbers, one a layer, not {tuple(scales)}.")
