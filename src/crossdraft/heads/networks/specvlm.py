"""SpecVLM (Huang et al. 2025): EagleVLM with an elastic compressor, chosen for each question.

A gate reads the target's feature after the question and picks how the visual tokens are compressed: none kept, mean
pooling, pruning, convolution, or a resampler. While drafting only the picked one is computed. In training the choice is
soft (Gumbel-softmax): the prefix holds the rows of all compressors, weighted by their probabilities. Rows of the prefix
do not attend to each other, so weights of 1 and 0 are the hard choice itself. Rotary positions do not depend on the
choice: rows keep those that they have in the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.compressor import Conv, Keep, Pool, Prune, Resampler, TextOnly
from crossdraft.heads.networks.eagle import Eagle
from crossdraft.heads.networks.layers import DecoderConfig, PrefixKV
from crossdraft.specs import Count

CHOICES = ("text-only", "pool", "prune", "conv", "resampler")


@dataclass(frozen=True, kw_only=True)
class EagleVLMConfig(DecoderConfig):
    """EAGLE's settings, and the target's ids for what it is shown, which make the network MSD (Lin et al. 2025).

    MSD decouples text and images: an image's row is its embedding alone, past `fc`, and the layer has no first norm.
    """

    visual_ids: tuple[int, ...] = ()


class EagleVLM(Eagle):
    """EagleVLM (SpecVLM's baseline): EAGLE-2 with a norm before its layer and every visual token in its prefix.

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

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor, question: Mapping[int, Tensor]) -> PrefixKV:
        rows = self.visual_rows(visual, ids)
        positions = torch.arange(rows.shape[1], device=rows.device)
        return PrefixKV(*self.layer.keys_values(rows), positions, len(positions))

    def visual_rows(self, visual: Mapping[int, Tensor], ids: Tensor) -> Tensor:
        """[B, N, H] the layer's input at the visual positions; arguments as in `prefix`."""
        embeds = torch.cat((visual[0][:, 1:], self.embed(ids[:, -1:])), 1)
        pairs = self.fc(torch.cat((embeds, self.last_feature(visual)), -1))
        shown = torch.isin(ids[:, 1:], ids.new_tensor(self.config.visual_ids))
        return torch.where(shown[..., None], embeds, pairs)


@dataclass(frozen=True, kw_only=True)
class SpecVLMConfig(EagleVLMConfig):
    """EagleVLM's settings, and the compressors'.

    Args:
        pool, prune, conv: number of visual tokens that become one.
        keep: which tokens pruning keeps: `uniform` or `random`, the same ones for every clip of one length.
        queries: number of queries of the resampler.
        temperature: temperature of the soft choice while training; the lower, the harder the choice.
    """

    pool: Count = 20
    prune: Count = 20
    conv: Count = 3
    queries: Count = 2
    keep: Keep = "random"
    temperature: float = 1.0


class SpecVLM(EagleVLM):
    """EagleVLM whose visual prefix is compressed in the way that a gate picks for each question."""

    config_class = SpecVLMConfig

    def __init__(self, config: SpecVLMConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        width = config.hidden_size
        resampler = Resampler(width, config.queries, config.heads)
        compressors = (
            TextOnly(), Pool(config.pool), Prune(config.prune, config.keep), Conv(width, config.conv), resampler,
        )  # fmt: skip
        self.compressors = nn.ModuleList(compressors)  # in the order of `CHOICES`
        self.gate = nn.Linear(width, len(CHOICES))
        self.temperature = config.temperature

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor, question: Mapping[int, Tensor]) -> PrefixKV:
        rows, scores = self.visual_rows(visual, ids), self.gate(self.last_feature(question))
        if not self.training and len(rows) == 1:
            kept, positions = self.compressors[int(scores.argmax())](rows)
            return PrefixKV(*self.layer.keys_values(kept), positions, rows.shape[1])
        every = [compress(rows) for compress in self.compressors]
        sizes = torch.tensor([len(positions) for _, positions in every], device=rows.device)
        weights = self._weights(scores).repeat_interleave(sizes, 1)
        kept, positions = (torch.cat(parts, dim) for parts, dim in zip(zip(*every, strict=True), (1, 0), strict=True))
        return PrefixKV(*self.layer.keys_values(kept), positions, rows.shape[1], weights)

    def _weights(self, scores: Tensor) -> Tensor:
        """[B, choices] scores -> logarithms of each choice's weight."""
        if self.training:
            noise = -torch.empty_like(scores).exponential_().log()  # Gumbel-distributed
            return ((scores + noise) / self.temperature).log_softmax(-1)
        nothing = torch.full_like(scores, float("-inf"))
        return nothing.scatter(1, scores.argmax(-1, keepdim=True), 0)
