"""EAGLE-1 and EAGLE-2 (Li et al. 2024): one decoder layer that extrapolates the target's last feature.

The two share network and weights; they differ in the trees that are drafted (`heads.drafting`).
"""

from typing import cast

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, DecoderConfig, DecoderLayer


class Eagle(Autoregressive):
    """[embedding; feature] -> one layer without a first norm -> the next feature; the target's own head speaks."""

    owns_head = False
    first_norm = False  # in front of the attention

    def __init__(self, config: DecoderConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, first_norm=self.first_norm)])

    @property
    def layer(self) -> DecoderLayer:
        """Its only one."""
        return cast("DecoderLayer", self.layers[0])

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        return self.layer(self.fc(torch.cat((embeds, features), -1)), attend)

    def predicted_features(self, outputs: Tensor) -> Tensor:
        return outputs
