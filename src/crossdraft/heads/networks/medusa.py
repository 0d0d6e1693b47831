"""Medusa-1 (Cai et al. 2024): one small head per future token, each reading the target's last feature and no token.

The k-th head predicts the k-th token behind the root without knowing the root or the tokens between. So all nodes of
one depth have the same distribution.
"""

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import ResBlock
from crossdraft.heads.networks.recurrent import INIT_SCALE, Recurrent, RecurrentConfig


class Medusa(Recurrent):
    """ResBlocks and output rows of its own for each head; the rows start from the target's (`INIT_SCALE`).

    The released code repeats one ResBlock `layers` times, weights and all; here each has its own.
    """

    owns_head = False  # the heads' rows only start from `lm_head`

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
