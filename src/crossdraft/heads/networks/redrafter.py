"""ReDrafter (Cheng et al. 2024): a small recurrent network on the target's last feature.

    s' = SiLU(W·e(x) + U·s + b)        s = 0 before the root
    logits = W_out · ResBlocks([f; s])

The same weights serve every depth, so drafts may be of any length. Trees are beam searches (`beam_search`).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import ResBlock
from crossdraft.heads.networks.recurrent import INIT_SCALE, Recurrent, RecurrentConfig


class ReDrafter(Recurrent):
    """A state is [f; s], 2H wide: the constant feature and the recurrent part. `layers` counts its ResBlocks."""

    owns_head = False  # its LM head is 2H wide

    def __init__(self, config: RecurrentConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        size, ids = config.hidden_size, len(config.draft_ids)
        self.rnn_w = nn.Linear(size, size, bias=False)
        self.rnn_u = nn.Linear(size, size)
        self.blocks = nn.Sequential(*(ResBlock(2 * size) for _ in range(config.layers)))
        self.rows = nn.Linear(2 * size, ids, bias=False)
        with torch.no_grad():
            self.rows.weight[:, :size].copy_(INIT_SCALE * self.lm_head.weight)

    @property
    def max_depth(self) -> None:
        return None

    def init_state(self, features: Tensor, tokens: Tensor) -> Tensor:
        return self.next_state(torch.cat((features, torch.zeros_like(features)), -1), tokens)

    def next_state(self, states: Tensor, tokens: Tensor) -> Tensor:
        feature, memory = states.chunk(2, -1)
        memory = F.silu(self.rnn_w(self.embed(tokens)) + self.rnn_u(memory))
        return torch.cat((feature, memory), -1)

    def logits(self, states: Tensor, depth: int) -> Tensor:
        return self.rows(self.blocks(states))
