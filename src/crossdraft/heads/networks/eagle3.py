"""EAGLE-3 (Li et al. 2025): features of three levels, no feature loss, and its own LM head over a draft vocabulary."""

from collections.abc import Mapping
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
    GatedMLP,
    RMSNorm,
    check_scales,
    columns,
    concat_layers,
)


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(DecoderConfig):
    """EAGLE-3's settings.

    Args:
        levels: low, middle and high level: numbers of the target's hidden states that are read; `None` = 2, L/2 and
            L - 3, as in EAGLE, vLLM and speculators. In a shallow target L - 3 is not high.
        level_scales: scales of the levels, see `concat_layers`.

    Raises:
        CrossdraftError: a level is outside the target, or there are not three levels and scales, all positive.
    """

    levels: tuple[int, ...] | None = None
    level_scales: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self.level_scales, 3)
        if len(self.read) != 3 or not all(0 <= level <= self.num_layers for level in self.read):
            raise CrossdraftError(
                f"EAGLE-3 reads three of the hidden states 0 to {self.num_layers} of its target, not {self.read}; "
                "set levels."
            )

    @property
    def read(self) -> tuple[int, ...]:
        """The levels; in a shallow target two of them may be equal."""
        return self.levels or levels_of(self.num_layers)


class MidLayer(nn.Module):
    """A decoder layer whose queries, keys and values read [norm(embedding); norm(feature)], 2H wide."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(self, embeds: Tensor, features: Tensor, attend: Attend) -> Tensor:
        """Pairs [B, n, H] -> [B, n, H]; the residual is the feature before its norm."""
        pair = torch.cat((self.input_layernorm(embeds), self.hidden_norm(features)), -1)
        stream = features + self.self_attn(pair, attend)
        return stream + self.mlp(self.post_attention_layernorm(stream))


class Eagle3(Autoregressive):
    """fc([low; mid; high]) -> one layer; its output, not yet normed, is the next feature.

    At initialisation it reads the high level alone.
    """

    config_class = Eagle3Config
    config: Eagle3Config  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: Eagle3Config, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.eps)
        with torch.no_grad():
            self.fc.weight.zero_()[:, 2 * config.hidden_size :].fill_diagonal_(1)

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.config.read)))

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return self.fc(concat_layers(hidden, self.config.read, self.config.level_scales))

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        return self.midlayer(embeds, features, attend)

    def logits(self, outputs: Tensor) -> Tensor:
        return self.lm_head(self.norm(outputs))

    def scales(self) -> dict[str, Tensor]:
        return {"fc.weight": columns(self.fc.weight, self.config.level_scales)}


def levels_of(num_layers: int) -> tuple[int, int, int]:
    """The hidden states that enter layers 2, L/2 and L - 3: EAGLE's, vLLM's and speculators' numbers."""
    return min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)
