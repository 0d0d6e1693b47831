"""Medusa-1 (Cai et al. 2024), Hydra and Hydra++ (Ankner et al. 2024): one small head for each future token."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, DecoderConfig, DecoderLayer, ResBlock, Rotary
from crossdraft.heads.networks.recurrent import INIT_SCALE, Recurrent, RecurrentConfig
from crossdraft.specs import Count


class Medusa(Recurrent):
    """Medusa-1: ResBlocks and an LM head of its own for each depth, which starts from the target's (`INIT_SCALE`).

    The k-th head predicts the k-th token after the root from the target's last feature alone, without knowing the root
    or the tokens between: all nodes of one depth have the same distribution.

    The released code repeats one ResBlock `layers` times with shared weights; here each has weights of its own.
    """

    owns_head = False  # the heads' own only start from `lm_head`

    def __init__(self, config: RecurrentConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResBlock(config.hidden_size) for _ in range(config.layers)), self._rows())
            for _ in range(config.steps)
        )

    def _rows(self) -> nn.Linear:
        rows = nn.Linear(self.lm_head.in_features, self.lm_head.out_features, bias=False)
        with torch.no_grad():
            rows.weight.copy_(INIT_SCALE * self.lm_head.weight)
        return rows

    def init_state(self, features: Tensor, tokens: Tensor) -> Tensor:
        return features

    def next_state(self, states: Tensor, tokens: Tensor) -> Tensor:
        return states

    def logits(self, states: Tensor, depth: int) -> Tensor:
        return self.heads[depth](states)


@dataclass(frozen=True, kw_only=True)
class HydraConfig(RecurrentConfig):
    """Hydra's sizes. In the paper both are H; the heads' input grows by `token_size` per token drafted.

    Args:
        token_size: size that a token's embedding is projected to, once for all heads.
        width: width of a head's hidden layers.
    """

    token_size: Count
    width: Count


@dataclass(frozen=True, kw_only=True)
class HydraPlusConfig(HydraConfig, DecoderConfig):
    """Hydra++'s sizes: those of its `steps` heads, and of the decoder layer before them."""


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
    """Hydra: Medusa's heads, each conditioned on the tokens that were drafted before its own.

    A state is the feature and, after it, the narrowed embeddings of the root and of every token drafted since.
    """

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
    """Hydra++: deeper heads, after one decoder layer over all of the target's last features ("prefix attention").

    It is trained on the target's distribution instead of its tokens (its recipe's loss).
    """

    config_class = HydraPlusConfig
    cache_layers = 1

    def __init__(self, config: HydraPlusConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.rotary = Rotary(config.head_dim, config.rope_theta, config.max_positions)
        self.prefix = DecoderLayer(config)

    def read(self, features: Tensor, attend: Attend) -> Tensor:
        return self.prefix(features, attend)
