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
        level_scales: scales of the levels, see `concat_layers`; as many as there are levels.
        norm_before_residual: the residual is the feature after its norm, as speculators train by default.
        norm_before_fc: the levels together are normed before `fc`, which keeps their scales against each other.
        fc_norm, norm_output: each level is normed before `fc`, and the next feature is the normed output (EAGLE-3.1).

    Raises:
        CrossdraftError: a level is outside the target, or there are not as many scales as levels, all positive.
    """

    levels: tuple[int, ...] | None = None
    level_scales: tuple[float, ...] = (1.0, 1.0, 1.0)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self.level_scales, len(self.read))
        if not all(0 <= level <= self.num_layers for level in self.read):
            raise CrossdraftError(
                f"EAGLE-3 reads some of the hidden states 0 to {self.num_layers} of its target, not {self.read}; "
                "set levels."
            )

    @property
    def read(self) -> tuple[int, ...]:
        """The levels; in a shallow target two of them may be equal."""
        return self.levels or levels_of(self.num_layers)


class MidLayer(nn.Module):
    """A decoder layer whose queries, keys and values read [norm(embedding); norm(feature)], 2H wide."""

    def __init__(self, config: DecoderConfig, *, norm_before_residual: bool = False) -> None:
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(self, embeds: Tensor, features: Tensor, attend: Attend) -> Tensor:
        """Pairs [B, n, H] -> [B, n, H]; the residual is the feature, before its norm or after it."""
        normed = self.hidden_norm(features)
        pair = torch.cat((self.input_layernorm(embeds), normed), -1)
        stream = (normed if self.norm_before_residual else features) + self.self_attn(pair, attend)
        return stream + self.mlp(self.post_attention_layernorm(stream))


class Eagle3(Autoregressive):
    """fc([low; mid; high]) -> one layer; its output, not yet normed (EAGLE-3.1: normed), is the next feature.

    At initialisation it reads the high level alone.
    """

    config_class = Eagle3Config
    config: Eagle3Config  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: Eagle3Config, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        count = len(config.read)
        self.level_scales = (1.0,) * count if config.fc_norm else config.level_scales  # its norms undo them
        self.fc = nn.Linear(count * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config, norm_before_residual=config.norm_before_residual)
        self.norm = RMSNorm(config.hidden_size, config.eps)
        size, levels = config.hidden_size, range(count if config.fc_norm else 0)
        self.input_norm = RMSNorm(count * size, config.eps) if config.norm_before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList([RMSNorm(size, config.eps) for _ in levels])
        with torch.no_grad():
            self.fc.weight.zero_()[:, -config.hidden_size :].fill_diagonal_(1)

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.config.read)))

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return self.project(concat_layers(hidden, self.config.read, self.level_scales))

    def project(self, levels: Tensor) -> Tensor:
        """Scaled levels [..., H · levels] -> feature [..., H]."""
        levels = self.input_norm(levels)
        if self.config.fc_norm:
            parts = zip(self.fc_norm, levels.chunk(len(self.fc_norm), -1), strict=True)
            levels = torch.cat([norm(level) for norm, level in parts], -1)
        return self.fc(levels)

    def fed_back(self, outputs: Tensor) -> Tensor:
        return self.norm(outputs) if self.config.norm_output else outputs

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        return self.midlayer(embeds, features, attend)

    def logits(self, outputs: Tensor) -> Tensor:
        return self.lm_head(self.norm(outputs))

    def scales(self) -> dict[str, Tensor]:
        return {"fc.weight": columns(self.fc.weight, self.level_scales)}


def levels_of(num_layers: int) -> tuple[int, int, int]:
    """The hidden states that enter layers 2, L/2 and L - 3: EAGLE's, vLLM's and speculators' numbers."""
    return min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)
