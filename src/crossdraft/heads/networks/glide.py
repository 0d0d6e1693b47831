"""GLIDE (Du et al. 2024, "GliDe with a CaPE"): a small decoder with cross-attention to the target's KV cache.

Its one layer has self-attention over the text and the draft, then cross-attention to the keys and values of the
target's last layer. The target has no keys at the draft's positions, so in training no position attends to the target's
later keys either (the paper's block-wise mask, eq. 5; here the block is the draft that begins at the position).
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights, TargetKV
from crossdraft.heads.networks.layers import (
    Attend,
    Attention,
    DecoderConfig,
    GatedMLP,
    KeyValue,
    RMSNorm,
    Rotary,
    split_heads,
)

OWN, TARGETS = 0, 1  # layers of the cache


class Glide(Autoregressive):
    """Embedding -> self-attention -> cross-attention to the target's last layer -> MLP -> LM head of its own.

    Raises:
        CrossdraftError: the target's last layer is not built like Llama's, or its heads do not fit the configuration.
    """

    cache_layers = 2

    def __init__(self, config: DecoderConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        kv = _fitting(config, shared.target_kv)
        self.target = TargetKVProjection(kv)
        # Its queries meet the target's keys, which were rotated with the target's base.
        self.rotary = Rotary(config.head_dim, kv.rope_theta, config.max_positions)
        size, width = config.hidden_size, config.heads * config.head_dim
        self.input_layernorm = RMSNorm(size, config.eps)
        self.self_attn = Attention(config)
        self.cross_layernorm = RMSNorm(size, config.eps)
        self.q_proj = nn.Linear(size, width, bias=False)
        self.o_proj = nn.Linear(width, size, bias=False)
        self.post_attention_layernorm = RMSNorm(size, config.eps)
        self.mlp = GatedMLP(size, config.intermediate_size)
        self.norm = RMSNorm(size, config.eps)

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.config.num_layers - 1,)  # what enters the last layer

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return hidden[self.config.num_layers - 1]

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        stream = embeds + self.self_attn(self.input_layernorm(embeds), attend, OWN)
        query = split_heads(self.q_proj(self.cross_layernorm(stream)), self.config.head_dim)
        mixed = attend.cross_attend(TARGETS, query, self.target(features) if step == 0 else None)
        stream = stream + self.o_proj(mixed.transpose(1, 2).flatten(2))
        return stream + self.mlp(self.post_attention_layernorm(stream))

    def logits(self, outputs: Tensor) -> Tensor:
        return self.lm_head(self.norm(outputs))


class TargetKVProjection(nn.Module):
    """The target's own keys and values, from the input of its last layer. Neither trained nor stored."""

    norm: Tensor
    key: Tensor
    value: Tensor
    key_bias: Tensor | None
    value_bias: Tensor | None

    def __init__(self, layer: TargetKV) -> None:
        super().__init__()
        self.eps, self.head_dim = layer.eps, layer.head_dim
        for name in ("norm", "key", "value", "key_bias", "value_bias"):
            self.register_buffer(name, getattr(layer, name), persistent=False)

    def forward(self, entering: Tensor) -> KeyValue:
        """[B, n, H] -> keys and values [B, kv_heads, n, d], not rotated."""
        normed = F.rms_norm(entering, entering.shape[-1:], self.norm.to(entering.dtype), self.eps)
        return self._heads(normed, self.key, self.key_bias), self._heads(normed, self.value, self.value_bias)

    def _heads(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.to(rows.dtype)
        return split_heads(F.linear(rows, weight.to(rows.dtype), bias), self.head_dim)


def _fitting(config: DecoderConfig, layer: TargetKV | None) -> TargetKV:
    """Return the target's projections, checked to fit the head's configuration."""
    if layer is None:
        raise CrossdraftError(
            "GLIDE reads keys and values of the target's last layer, which must be built like Llama's (a norm, key and "
            "value projections, no norm of the keys); this one is not, so train another kind of head for it."
        )
    if layer.head_dim != config.head_dim or config.heads % layer.kv_heads:
        raise CrossdraftError(
            f"GLIDE's queries must fit the target's keys: give it head_dim {layer.head_dim} and heads a multiple of "
            f"{layer.kv_heads}, not {config.head_dim} and {config.heads}."
        )
    return layer
