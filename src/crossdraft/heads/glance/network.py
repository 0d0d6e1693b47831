"""`glance`: cross-attention from an event drafter's last feature to the target's visual features of a few frames.

An event camera records no colour, so an event model cannot predict it. Its last feature queries frames of the clip,
encoded by the target's vision encoder:

    the drafter's feature    h(t) ── + attention over the frames' features ── + MLP ──> logits of x(t+1)
    the vision encoder       [frames · n, E], with a learned position each ──┘

The event model and its prompt are unchanged. The layers are initialised as the identity and the LM head as the model's
own, so that only the difference has to be learned. As in GLIDE (Du et al. 2024) the drafter attends to states of the
target, but of its vision encoder; these are ready long before the prefill ends, so that drafting is still hidden. The
"target" of `networks.base` is here the event model, whose embeddings are shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.layers import GatedMLP, KeyValue, RMSNorm, split_heads
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class GlanceConfig(HeadConfig):
    """Settings of `glance`.

    Args:
        tower: fingerprint of the target whose vision encoder it reads; files store it under this key.
        visual_size: E, width of the target's visual features.
        frames: number of frames that are read, evenly spread over those that the target reads.
        patches: n, number of features of a frame.
        layers: number of cross-attention layers.
        heads: number of attention heads.
        intermediate_size: inner width of the MLPs.

    Raises:
        CrossdraftError: as `HeadConfig`, or a hidden_size that is no multiple of heads.
    """

    tower: str
    visual_size: Count
    frames: Count = 3
    patches: Count
    layers: Count = 1
    heads: Count = 4
    intermediate_size: Count = 384

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.heads:
            raise CrossdraftError(
                f"A glance's feature of {self.hidden_size} cannot be shared by {self.heads} heads; choose a divisor."
            )


class GlanceLayer(nn.Module):
    """h + o(attention(q(h), k(v), v(v))), then + MLP; both start at 0. Weights keep their stored names."""

    def __init__(self, config: GlanceConfig) -> None:
        super().__init__()
        size, self.head_dim = config.hidden_size, config.hidden_size // config.heads
        self.ask_norm, self.see_norm, self.mlp_norm = (
            RMSNorm(width, eps=1e-6) for width in (size, config.visual_size, size)
        )
        self.places = nn.Parameter(torch.randn(config.frames * config.patches, config.visual_size) * 0.02)
        # Not `q_proj`: `engine.fast.packed_linear` makes one product of queries, keys and values of the same rows.
        self.ask_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(config.visual_size, size, bias=False)
        self.v_proj = nn.Linear(config.visual_size, size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)
        self.mlp = GatedMLP(size, config.intermediate_size)
        nn.init.zeros_(self.o_proj.weight)
        nn.init.zeros_(self.mlp.down_proj.weight)

    def keys_values(self, visual: Tensor) -> KeyValue:
        """Compute keys and values [B, heads, N, d] from features [B, N, E] of frames · n."""
        rows = self.see_norm(visual) + self.places[: visual.shape[1]]
        return split_heads(self.k_proj(rows), self.head_dim), split_heads(self.v_proj(rows), self.head_dim)

    def forward(self, features: Tensor, visual: KeyValue) -> Tensor:
        """[B, T, H] -> [B, T, H]."""
        query = split_heads(self.ask_proj(self.ask_norm(features)), self.head_dim)
        mixed = F.scaled_dot_product_attention(query, *visual)
        features = features + self.o_proj(mixed.transpose(1, 2).flatten(2))
        return features + self.mlp(self.mlp_norm(features))


def check_visual(visual: Tensor, config: GlanceConfig) -> None:
    """Check visual features [B, frames · n, E].

    Raises:
        CrossdraftError: their number or size differs from what the network was trained with.
    """
    wanted = (config.frames * config.patches, config.visual_size)
    if tuple(visual.shape[1:]) != wanted:
        raise CrossdraftError(
            f"The network reads {config.frames} frames of {config.patches} features, "
            f"{wanted[0]} x {wanted[1]} in all; got {' x '.join(map(str, visual.shape[1:]))}."
        )


class Glance(Head):
    """Cross-attention of `glance` with its LM head."""

    config_class = GlanceConfig
    config: GlanceConfig

    def __init__(self, config: GlanceConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.layers = nn.ModuleList([GlanceLayer(config) for _ in range(config.layers)])

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return (0,)

    @property
    def _layers(self) -> Sequence[GlanceLayer]:
        return cast("Sequence[GlanceLayer]", self.layers)

    def keys_values(self, visual: Tensor) -> list[KeyValue]:
        """Compute each layer's keys and values from the vision encoder's features of the frames, [B, frames · n, E].

        Raises:
            CrossdraftError: their number or size differs from what the network was trained with.
        """
        check_visual(visual, self.config)
        return [layer.keys_values(visual.to(self.embeddings)) for layer in self._layers]

    def logits(self, features: Tensor, visual: Sequence[KeyValue]) -> Tensor:
        """Map last features [B, T, H] of the drafter's model to logits [B, T, D] of the next tokens."""
        features = features.to(self.embeddings)
        for layer, rows in zip(self._layers, visual, strict=True):
            features = layer(features, rows)
        return self.lm_head(features)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """Predict the event model's own next token at every position: offset 0."""
        return [DraftLogits(0, self.logits(self.last_feature(batch.hidden), self.keys_values(batch.visual[0])))]
