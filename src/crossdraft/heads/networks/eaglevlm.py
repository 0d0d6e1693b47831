"""EagleVLM (Huang et al. 2025, the baseline of SpecVLM): EAGLE-2 that sees every visual place."""

from collections.abc import Mapping

import torch
from torch import Tensor

from crossdraft.heads.networks.eagle import Eagle
from crossdraft.heads.networks.layers import PrefixKV


class EagleVLM(Eagle):
    """EAGLE's network with a norm in front of its layer; what the target read of the clip stands in front of the text.

    A visual place is a pair like any other: the target's feature there, and the embedding behind it, which is no
    word's but the next place's visual feature. Behind the last of them comes the text's first token.
    """

    first_norm = True

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return 0, self.config.num_layers

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor, asked: Mapping[int, Tensor]) -> PrefixKV:
        rows = self.seen(visual, ids)
        places = torch.arange(rows.shape[1], device=rows.device)
        return PrefixKV(*self.layer.keys_values(rows), places, len(places))

    def seen(self, visual: Mapping[int, Tensor], ids: Tensor) -> Tensor:
        """[B, N, H] the visual places as they enter the layer; arguments as in `prefix`."""
        embeds = torch.cat((visual[0][:, 1:], self.embed(ids[:, -1:])), 1)
        return self.fc(torch.cat((embeds, self.last(visual)), -1))
