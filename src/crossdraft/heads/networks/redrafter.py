"""ReDrafter (Cheng et al. 2024): a small recurrent network that goes on from the target's last feature.

    s' = SiLU(W·e(x) + U·s + b)        s = 0 in front of the root
    logits = rows · ResBlocks([f; s])

One set of weights serves every level, so it drafts as far as one likes. Trees are beam searches (`trees.beams`).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import ResBlock
from crossdraft.heads.networks.recurrent import BEGIN, Recurrent, RecurrentConfig


class ReDrafter(Recurrent):
    """A state is [f; s], 2H wide: the feature, which stays, and the recurrent part. `layers` are its ResBlocks."""

    owns_head = False  # its rows are 2H wide

    def __init__(self, config: RecurrentConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        size, ids = config.hidden_size, len(config.draft_ids)
        self.rnn_w = nn.Linear(size, size, bias=False)
        self.rnn_u = nn.Linear(size, size)
        self.blocks = nn.Sequential(*(ResBlock(2 * size) for _ in range(config.layers)))
        self.rows = nn.Linear(2 * size, ids, bias=False)
        with torch.no_grad():  # so that it begins by saying the target's words, as far as the feature tells
            self.rows.weight[:, :size].copy_(BEGIN * self.lm_head.weight)

    @property
    def levels(self) -> None:
        return None

    def init_state(self, features: Tensor, tokens: Tensor) -> Tensor:
        return self.next_state(torch.cat((features, torch.zeros_like(features)), -1), tokens)

    def next_state(self, states: Tensor, tokens: Tensor) -> Tensor:
        feature, memory = states.chunk(2, -1)
        memory = F.silu(self.rnn_w(self.embed(tokens)) + self.rnn_u(memory))
        return torch.cat((feature, memory), -1)

    def say(self, states: Tensor, level: int) -> Tensor:
        return self.rows(self.blocks(states))
