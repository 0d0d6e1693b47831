"""EagleVLM (Huang et al. 2025, the baseline of SpecVLM): EAGLE-2 that reads every visual token."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from crossdraft.heads.networks.eagle import Eagle
from crossdraft.heads.networks.layers import DecoderConfig, PrefixKV


@dataclass(frozen=True, kw_only=True)
class EagleVLMConfig(DecoderConfig):
    """EAGLE's settings, and the target's ids for what it is shown, which make the network MSD (Lin et al. 2025).

    MSD decouples text and images: an image's row is its embedding alone, past `fc`, and the layer has no first norm.
    """

    visual_ids: tuple[int, ...] = ()


class EagleVLM(Eagle):
    """EAGLE-2 with a norm before its layer and every visual token in its prefix.

    A visual position is a pair like any other: the target's feature there, and the embedding after it, which is the
    next position's visual feature. After the last of them comes the text's first token.
    """

    config_class = EagleVLMConfig
    config: EagleVLMConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def first_norm(self) -> bool:
        return not self.config.visual_ids

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return 0, self.config.num_layers

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor) -> PrefixKV:
        embeds = torch.cat((visual[0][:, 1:], self.embed(ids[:, -1:])), 1)
        pairs = self.fc(torch.cat((embeds, self.last_feature(visual)), -1))
        shown = torch.isin(ids[:, 1:], ids.new_tensor(self.config.visual_ids))
        rows = torch.where(shown[..., None], embeds, pairs)
        positions = torch.arange(rows.shape[1], device=rows.device)
        return PrefixKV(*self.layer.keys_values(rows), positions, len(positions))
