"""Medusa-1 (Cai et al. 2024): one small head per token ahead, each knowing the target's last feature and nothing else.

The k-th head guesses the k-th token behind the root without knowing the root, nor what the heads before it said. So
all nodes of a level share one law; the tree is what joins them.
"""

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import ResBlock
from crossdraft.heads.networks.recurrent import BEGIN, Recurrent, RecurrentConfig


class Medusa(Recurrent):
    """ResBlocks and output rows of its own for each head; these begin as the target's (`BEGIN`), the blocks as nothing.

    The released code repeats one ResBlock `layers` times, weights and all; here each has its own.
    """

    owns_head = False  # `lm_head` is where the heads' rows begin, no more

    def __init__(self, config: RecurrentConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResBlock(config.hidden_size) for _ in range(config.layers)), self._rows())
            for _ in range(config.steps)
        )

    def _rows(self) -> nn.Linear:
        rows = nn.Linear(self.lm_head.in_features, self.lm_head.out_features, bias=False)
        with torch.no_grad():
            rows.weight.copy_(BEGIN * self.lm_head.weight)
        return rows

    def init_state(self, features: Tensor, tokens: Tensor) -> Tensor:
        return features

    def next_state(self, states: Tensor, tokens: Tensor) -> Tensor:
        return states

    def say(self, states: Tensor, level: int) -> Tensor:
        return self.heads[level](states)
