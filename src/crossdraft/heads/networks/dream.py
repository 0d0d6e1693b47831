"""DREAM (Hu et al. 2025): EAGLE's layer, then gated cross-attention to features of a middle layer of the target.

The first layer's output is trained to predict the target's feature in that middle layer, the second's its last feature.
The middle layer is a setting, the same for all tokens; the authors choose one for each token, by the entropy of the
target's attention in training. Their head also reads the visual tokens that attention-based pruning keeps; ours reads
the text alone, whose features contain the clip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import (
    Attend,
    Attention,
    DecoderConfig,
    DecoderLayer,
    GatedMLP,
    RMSNorm,
    split_heads,
)
from crossdraft.heads.networks.objective import smooth_l1
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch

OWN, TARGETS = 0, 1  # layers of the cache


@dataclass(frozen=True, kw_only=True)
class DreamConfig(DecoderConfig):
    """EAGLE's settings, and a layer in the middle of the target.

    Args:
        middle_layer: number of the hidden state that is read and predicted: 1 … L - 1.

    Raises:
        CrossdraftError: `middle_layer` is outside that range.
    """

    middle_layer: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.middle_layer < self.num_layers:
            raise CrossdraftError(
                f"DREAM's middle_layer must be one of 1 … {self.num_layers - 1}, between the target's embeddings and "
                f"its last feature, not {self.middle_layer}."
            )


@dataclass(frozen=True)
class DreamLogits(DraftLogits):
    """A prediction, with the first layer's prediction of the target's middle feature: [B, T, H]."""

    middle: Tensor | None = None


class GatedCross(nn.Module):
    """Attention to the target's middle features, and an MLP; each through a gate tanh(g) initialised to 0."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.middle_norm = RMSNorm(config.hidden_size, config.eps)
        self.cross_attn = Attention(config)
        self.attn_gate = nn.Parameter(torch.zeros(1))
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.mlp_gate = nn.Parameter(torch.zeros(1))

    def forward(self, stream: Tensor, middle: Tensor | None, attend: Attend) -> Tensor:
        """[B, n, H] -> [B, n, H]; `middle` are the target's features there, `None` = the rows are a draft's."""
        attention, new_kv = self.cross_attn, None
        if middle is not None:
            new_kv = attention.keys_values(self.middle_norm(middle))
        query = split_heads(attention.q_proj(self.input_layernorm(stream)), attention.head_dim)
        mixed = attention.o_proj(attend.cross_attend(TARGETS, query, new_kv).transpose(1, 2).flatten(2))
        stream = stream + self.attn_gate.tanh() * mixed
        return stream + self.mlp_gate.tanh() * self.mlp(self.post_attention_layernorm(stream))


class Dream(Autoregressive):
    """Features and outputs of this head are [last feature; middle feature], 2H wide."""

    owns_head = False
    extras = ("middle",)
    cache_layers = 2
    config_class = DreamConfig
    config: DreamConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: DreamConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = DecoderLayer(config, first_norm=False)
        self.cross = GatedCross(config)

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.config.middle_layer, self.config.num_layers)

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return torch.cat((self.last_feature(hidden), hidden[self.config.middle_layer]), -1)

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        last, middle = features.chunk(2, -1)
        inner = self.layer(self.fc(torch.cat((embeds, last), -1)), attend, OWN)
        final = self.cross(inner, middle if step == 0 else None, attend)
        return torch.cat((final, inner), -1)

    def logits(self, outputs: Tensor) -> Tensor:
        return self.lm_head(outputs.chunk(2, -1)[0])

    def prediction(self, offset: int, outputs: Tensor) -> DreamLogits:
        final, middle = outputs.chunk(2, -1)
        return DreamLogits(offset, self.logits(outputs), final, middle=middle)

    def extra_losses(self, batch: TrainBatch, predictions: Sequence[DraftLogits]) -> dict[str, Tensor]:
        """`middle`: SmoothL1 between the first layer's outputs and the target's middle features.

        The mean over offsets of sums over positions, each divided by the number N of the first offset's positions, as
        in `objective.score`: so it is 0 if answers are too short, and micro-batches, weighted by their N, add up.
        """
        target, losses = batch.hidden[self.config.middle_layer], []
        count = max(int(batch.loss_mask(min(prediction.offset for prediction in predictions)).sum()), 1)
        for prediction in predictions:
            if isinstance(prediction, DreamLogits) and prediction.middle is not None:
                positions = batch.loss_mask(prediction.offset)
                wanted = target.roll(-prediction.offset, 1)  # `loss_mask` leaves out what wraps around
                losses.append(smooth_l1(prediction.middle[positions], wanted[positions]).sum() / count)
        return {"middle": torch.stack(losses).mean()}
