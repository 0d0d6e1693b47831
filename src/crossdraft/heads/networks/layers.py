"""Parts of decoders that heads are built from. What attends to what is not theirs to know: an `Attend` does it.

While training, a whole text is read at once, and drafting is rehearsed on it (`TTTAttention`); while drafting, keys and
values lie in a cache and a tree's mask says who sees whom. The layers are the same.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import HeadConfig
from crossdraft.heads.networks.settings import at_least_one


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(HeadConfig):
    """A head with decoder layers.

    Args:
        heads, kv_heads, head_dim: of its attention.
        intermediate_size: of its gated MLP.
        rope_theta, max_positions: of its rotary positions.
        eps: of its norms.
        steps: tokens that are drafted in a row while training.

    Raises:
        CrossdraftError: a size or count below 1, heads that do not share keys evenly, or an odd head_dim.
    """

    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 10000.0
    max_positions: int = 2048
    eps: float = 1e-6
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("heads", "kv_heads", "head_dim", "intermediate_size", "max_positions", "steps"):
            at_least_one(getattr(self, name), f"A head's {name}")
        if self.heads % self.kv_heads:
            raise CrossdraftError(
                f"A head's heads={self.heads} must be a multiple of its kv_heads={self.kv_heads}, which they share."
            )
        if self.head_dim % 2:
            raise CrossdraftError(
                f"A head's head_dim must be even, for rotary positions turn pairs; {self.head_dim} is odd."
            )


KeyValue = tuple[Tensor, Tensor]  # keys and values


class Attend(Protocol):
    """Mixes values: see the module's text."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, alone: KeyValue | None = None) -> Tensor:
        """[B, heads, n, d] queries and [B, kv_heads, n, d] keys and values, none rotated yet -> [B, heads, n, d].

        `alone` are further keys and values, which only the row that they come with sees, and nobody later.
        """
        ...

    def cross_attend(self, layer: int, query: Tensor, fresh: KeyValue | None) -> Tensor:
        """Mix what is known of the *target* in the text, up to where a draft leaves it: no row of a draft adds to that.

        `fresh` are keys and values [B, kv_heads, n, d] at the rows' own places; `None` = the rows are a draft's.
        """
        ...


@dataclass(frozen=True)
class PrefixKV:
    """What stands in front of the text and is read by all of it. Nobody asks from there, so it has no queries.

    In a head of one layer the outputs of these rows would go nowhere: keys and values are all that they cost. A head
    of several computes these rows layer by layer, on their own: nothing behind them changes them.

    Args:
        key, value: [B, kv_heads, P, d], not rotated, of the first layer; P may be 0.
        places: [P] positions.
        start: position of the text's first row: that which it would have if nothing were left out of what is in front.
        weights: [B, P] logarithms of how much each row counts; `None` = all alike.
        aside: [B, 1, H] what every row of the text is told as well (`Autoregressive.add_global`); `None` = nothing.
        deeper: keys and values of each further layer.
    """

    key: Tensor
    value: Tensor
    places: Tensor
    start: int
    weights: Tensor | None = None
    global_feature: Tensor | None = None
    deeper: tuple[KeyValue, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    @property
    def rows(self) -> tuple[KeyValue, ...]:
        """Keys and values, layer by layer."""
        return ((self.key, self.value), *self.deeper)


class RMSNorm(nn.RMSNorm):
    """The norm, whose weights take the rows' precision: with mixed ones PyTorch leaves its fast path."""

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021), from a table."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, theta: float, positions: int) -> None:
        super().__init__()
        speeds = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angles = torch.arange(positions, dtype=torch.float64)[:, None] * speeds
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), -1).float(), persistent=False)
        # The first half's sines negated: x·cos + rotate_half(x)·sin = x·cos + roll(x)·sin.
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), -1).float(), persistent=False)

    def forward(self, heads: Tensor, positions: Tensor) -> Tensor:
        """[..., n, d] turned by [n] positions."""
        return rotate(heads, *self.rows(positions))

    def rows(self, positions: Tensor) -> KeyValue:
        """Cosines and sines at [n] positions, for several `rotate` by the same."""
        return self.cos[positions], self.sin[positions]


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[..., n, d] turned by rows of `Rotary`."""
    cos, sin = cos.to(heads.dtype), sin.to(heads.dtype)
    return heads * cos + heads.roll(heads.shape[-1] // 2, -1) * sin


class Attention(nn.Module):
    """Query, key, value and output projections, without biases."""

    def __init__(self, config: DecoderConfig, in_features: int | None = None) -> None:
        super().__init__()
        width, self.head_dim = in_features or config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * self.head_dim, config.hidden_size, bias=False)
        # Where a network norms each head's queries and keys, as Qwen3 does, it puts its norms here.
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
    """Attention and MLP, each behind a norm and beside a residual, as in Llama.

    `first_norm=False` leaves out the norm in front of the attention: EAGLE-1's only layer has none.
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
    """Attention while drafting is rehearsed on a whole text: EAGLE-3's training-time test (Li et al. 2025).

    In step 0 every place t reads the target's own features, causally. In step j it stands for the j-th token of a
    draft that left the text at t: it sees the text up to t, what it wrote in steps 1 … j - 1 at t itself, and nothing
    of the drafts of other places. Its position is t + j. What stands in front of the text, all see.
    """

    def __init__(self, rotary: Rotary, prefix: PrefixKV | None = None) -> None:
        self.rotary = rotary
        self.prefix = prefix
        self.step = 0
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {}  # layer -> keys and values, step by step

    def at(self, step: int) -> "TTTAttention":
        """The same, for that step."""
        self.step = step
        return self

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, alone: KeyValue | None = None) -> Tensor:
        seen = self._seen.setdefault(layer, [])
        width, prefix = query.shape[2], self.prefix
        start = self.step + (0 if prefix is None else prefix.start)
        places = torch.arange(start, start + width, device=query.device)
        groups = query.shape[1] // key.shape[1]
        query, key = self.rotary(query, places), self.rotary(key, places)
        if self.step == 0 and prefix is not None:
            before = prefix.rows[layer]
            key = torch.cat((self.rotary(before[0], prefix.places), key), 2)
            value = torch.cat((before[1], value), 2)
        seen.append((key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)))
        if alone is not None:
            rotate = self.rotary(alone[0], places).repeat_interleave(groups, 1)
            seen = [*seen, (rotate, alone[1].repeat_interleave(groups, 1))]
        if len(seen) == 1 and prefix is None:
            return F.scaled_dot_product_attention(query, seen[0][0], seen[0][1], is_causal=True)
        bias = _bias(prefix, width, query)
        if len(seen) == 1:
            return F.scaled_dot_product_attention(query, *seen[0], attn_mask=bias)
        return _mixed(query * query.shape[-1] ** -0.5, seen, bias)

    def cross_attend(self, layer: int, query: Tensor, fresh: KeyValue | None) -> Tensor:
        if fresh is not None:
            groups = query.shape[1] // fresh[0].shape[1]
            places = torch.arange(fresh[0].shape[2], device=query.device)
            rows = self.rotary(fresh[0], places), fresh[1]
            self._seen[layer] = [(rows[0].repeat_interleave(groups, 1), rows[1].repeat_interleave(groups, 1))]
        width = query.shape[2]
        places = torch.arange(self.step, self.step + width, device=query.device)
        bias = _bias(None, width, query)
        return F.scaled_dot_product_attention(self.rotary(query, places), *self._seen[layer][0], bias)


def _bias(prefix: PrefixKV | None, width: int, like: Tensor) -> Tensor:
    """[1 or B, 1, n, P + n] to be added to scores: all of the front as it counts, the text up to each place."""
    text = like.new_full((1, 1, width, width), float("-inf")).triu_(1)
    if prefix is None:
        return text
    weights = like.new_zeros(1, len(prefix)) if prefix.weights is None else prefix.weights.to(like.dtype)
    before = weights[:, None, None].expand(-1, -1, width, -1)
    return torch.cat((before, text.expand(len(before), -1, -1, -1)), -1)


def _mixed(query: Tensor, seen: list[tuple[Tensor, Tensor]], bias: Tensor) -> Tensor:
    """Each place over the text up to itself, and over its own draft."""
    (key, value), *own = seen
    text = query @ key.transpose(-1, -2) + bias
    drafted = [(query * drafted_key).sum(-1, keepdim=True) for drafted_key, _ in own]
    weights = torch.cat((text, *drafted), -1).softmax(-1)
    mixed = weights[..., : key.shape[2]] @ value
    for place, (_, drafted_value) in enumerate(own, key.shape[2]):
        mixed = mixed + weights[..., place, None] * drafted_value
    return mixed


def split_heads(rows: Tensor, head_dim: int) -> Tensor:
    """[B, n, heads·d] -> [B, heads, n, d]."""
    return rows.unflatten(-1, (-1, head_dim)).transpose(1, 2)
