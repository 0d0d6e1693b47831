"""Hydra (Ankner et al. 2024): Medusa's heads, each conditioned on the tokens that were drafted before its own.

Hydra++ puts one decoder layer over the target's last features in front ("prefix attention"), deepens the heads, and
trains on the target's distribution instead of its tokens (its recipe's loss).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, DecoderConfig, DecoderLayer, ResBlock, Rotary
from crossdraft.heads.networks.recurrent import Recurrent, RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class HydraConfig(RecurrentConfig):
    """Hydra's sizes. The paper's are H both; the heads' input grows by `token_size` per token drafted.

    Args:
        token_size: numbers that a token's embedding is narrowed to, once for all heads.
        width: numbers between the blocks of a head.

    Raises:
        CrossdraftError: a size or count below 1.
    """

    token_size: int
    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.token_size, self.width) < 1:
            raise CrossdraftError("Hydra's token_size and width must be 1 or more.")


@dataclass(frozen=True, kw_only=True)
class HydraPlusConfig(HydraConfig, DecoderConfig):
    """Hydra++'s: those of its heads (`steps` of them), and of the decoder layer in front."""


class FirstBlock(nn.Module):
    """Ax + SiLU(Wx + b): a ResBlock whose input is wider than its output, so that its skip is linear."""

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.skip = nn.Linear(in_features, width)
        self.linear = nn.Linear(in_features, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., width]."""
        return self.skip(rows) + F.silu(self.linear(rows))


class Hydra(Recurrent):
    """A state is the feature and, behind it, the narrowed embeddings of the root and of every token drafted since."""

    config_class = HydraConfig
    owns_head = False  # every head has rows of its own

    def __init__(self, config: HydraConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.narrow = nn.Linear(config.hidden_size, config.token_size, bias=False)
        self.heads = nn.ModuleList(
            nn.Sequential(
                FirstBlock(config.hidden_size + tokens * config.token_size, config.width),
                *(ResBlock(config.width) for _ in range(config.layers - 1)),
                nn.Linear(config.width, len(config.draft_ids), bias=False),
            )
            for tokens in range(1, config.steps + 1)
        )

    def init_state(self, features: Tensor, tokens: Tensor) -> Tensor:
        return self.next_state(features, tokens)

    def next_state(self, states: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat((states, self.narrow(self.embed(tokens))), -1)

    def logits(self, states: Tensor, depth: int) -> Tensor:
        return self.heads[depth](states)


class HydraPlus(Hydra):
    """Hydra++: the heads read a decoder layer's output over all features so far."""

    config_class = HydraPlusConfig
    cache_layers = 1

    def __init__(self, config: HydraPlusConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.rotary = Rotary(config.head_dim, config.rope_theta, config.max_positions)
        self.prefix = DecoderLayer(config)

    def read(self, features: Tensor, attend: Attend) -> Tensor:
        return self.prefix(features, attend)
