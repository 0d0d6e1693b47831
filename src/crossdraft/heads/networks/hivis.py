"""HiViS (Xie et al. 2025): no visual token in the drafter at all; the target's features have seen the clip already."""

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, DecoderConfig, DecoderLayer


class HiViS(Autoregressive):
    """f W1 + e W2 + r_j -> one layer -> the next feature; the target's own head speaks.

    From the first drafted token on, f is no longer the target's but the head's own guess, and the farther, the worse.
    The residual r_j, learned for each step j of the rehearsal, tells the layer how far it is; steps beyond take the
    last one.
    """

    owns_head = False

    def __init__(self, config: DecoderConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)  # [W2; W1], EAGLE's order
        self.residuals = nn.Parameter(torch.zeros(config.steps, config.hidden_size))
        self.layers = nn.ModuleList([DecoderLayer(config)])

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        rows = self.fc(torch.cat((embeds, features), -1)) + self.residuals[min(step, self.config.steps - 1)]
        return self.layers[0](rows, attend)

    def predicted_features(self, outputs: Tensor) -> Tensor:
        return outputs
