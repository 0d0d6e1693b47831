"""EAGLE-1 and EAGLE-2 (Li et al. 2024): one decoder layer that extrapolates the target's last feature; and HiViS.

EAGLE-1 and -2 share network and weights; they differ in the trees that are drafted (`heads.drafting`).
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, DecoderConfig, DecoderLayer


class Eagle(Autoregressive):
    """fc([embedding; feature]) -> one layer without a first norm -> the next feature; logits by the target's head."""

    owns_head = False
    fc_bias = True

    def __init__(self, config: DecoderConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=self.fc_bias)
        self.layers = nn.ModuleList([DecoderLayer(config, first_norm=self.first_norm)])

    @property
    def first_norm(self) -> bool:
        """True if a norm stands before the attention."""
        return False

    @property
    def layer(self) -> DecoderLayer:
        """The head's only decoder layer."""
        return cast("DecoderLayer", self.layers[0])

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        return self.layer(self.fc(torch.cat((embeds, features), -1)), attend)

    def predicted_features(self, outputs: Tensor) -> Tensor:
        return outputs


@dataclass(frozen=True, kw_only=True)
class HiViSConfig(DecoderConfig):
    """EAGLE's settings, and whether a norm stands before the attention; in the authors' files there is none."""

    first_norm: bool = True


class HiViS(Eagle):
    """HiViS (Xie et al. 2025): no visual tokens in the drafter; f W1 + e W2 + r_j enters the layer.

    From the first drafted token on, f is the head's own output, and less accurate at every step. The residual r_j,
    learned for each step j of the training-time test, encodes the step; later steps use the last one.
    `fc` is [W2; W1], in EAGLE's order.
    """

    config_class = HiViSConfig
    config: HiViSConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    fc_bias = False

    def __init__(self, config: HiViSConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.residuals = nn.Parameter(torch.zeros(config.steps, config.hidden_size))

    @property
    def first_norm(self) -> bool:
        return self.config.first_norm

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        rows = self.fc(torch.cat((embeds, features), -1)) + self.residuals[min(step, self.config.steps - 1)]
        return self.layer(rows, attend)
