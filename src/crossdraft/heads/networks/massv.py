"""MASSV (Ganesan et al. 2025): a small VLM after the target's vision encoder.

A small language model after a projector of the target's visual embeddings, trained on the target's answers. It reads
no features of the target's language model, so none needs to be predicted, and accuracy does not fall with the depth of
a draft. Spec-LLaVA (Huo et al. 2025) is the same with dynamic trees: `massv:tree=dynamic`.

MASSV reports up to 30 % more accepted tokens than the same small model has from the text alone. `sees=False` is that
text-only control: no visual rows, otherwise the same.

Ours shares the target's embeddings, projected to its own width, and trains in one stage where the papers use two (the
projector first, then answers): it is not initialised from a model trained on text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, arange, cat, nn
from torch.nn import functional as F

from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights, shifted
from crossdraft.heads.networks.layers import (
    Attend,
    DecoderConfig,
    DecoderLayer,
    KeyValue,
    PrefixKV,
    RMSNorm,
    TTTAttention,
)
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class MASSVConfig(DecoderConfig):
    """The small model's sizes.

    Args:
        width: width of its rows.
        layers: number of decoder layers.
        pool: number of visual positions averaged to one row, after the projector; the papers keep every position.
        sees: false = the text-only control.
    """

    width: Count = 192
    layers: Count = 2
    pool: Count = 4
    sees: bool = True


class MASSV(Autoregressive):
    """Small language model as a head. Only the token of each pair is read; the LM head is the target's."""

    owns_head = False  # after `widen`, an LM head of its own would be redundant
    config_class = MASSVConfig
    config: MASSVConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: MASSVConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        size, width, self.cache_layers = config.hidden_size, config.width, config.layers
        # A target's visual embeddings may have hundreds of times its tokens' norm: both are normed.
        self.narrow = nn.Sequential(RMSNorm(size, config.eps), nn.Linear(size, width, bias=False))
        if config.sees:
            self.projector = nn.Sequential(
                RMSNorm(size, config.eps), nn.Linear(size, width), nn.GELU(), nn.Linear(width, width)
            )
        own = replace(config, hidden_size=width)
        self.layers = nn.ModuleList([DecoderLayer(own) for _ in range(config.layers)])
        self.norm = RMSNorm(width, config.eps)
        self.widen = nn.Linear(width, size, bias=False)

    @property
    def reads(self) -> tuple[int, ...]:
        """No hidden states; a text-only head names one that it ignores, as a drafter without needs gets no prompt."""
        return () if self.config.sees else super().reads

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return (0,) if self.config.sees else ()

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """No features: [1, 0, 0]."""
        return self.embeddings.new_empty(1, 0, 0)

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor) -> PrefixKV:
        """Keys and values, with causal attention, of the visual positions and of the text's first token after them.

        In the last layer only keys and values are computed.
        """
        rows, pool = self.projector(visual[0]).transpose(1, 2), self.config.pool
        pooled = F.avg_pool1d(rows, pool, pool, ceil_mode=True).transpose(1, 2)
        stream, attend = cat((pooled, self.narrow(self.embed(ids[:, -1:]))), 1), TTTAttention(self.rotary)
        kept: list[KeyValue] = []
        for number, layer in enumerate(self._layers):
            kept.append(layer.keys_values(stream))
            if number + 1 < self.cache_layers:
                stream = layer(stream, attend, number)
        count = stream.shape[1]
        return PrefixKV(*kept[0], arange(count, device=stream.device), count, deeper=tuple(kept[1:]))

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        """Embeddings [B, n, H] -> [B, n, width]."""
        stream = self.narrow(embeds)
        for number, layer in enumerate(self._layers):
            stream = layer(stream, attend, number)
        return stream

    def logits(self, outputs: Tensor) -> Tensor:
        return self.lm_head(self.widen(self.norm(outputs)))

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """One pass: no features are fed back, so that offset k at a position is offset 1, k - 1 positions later.

        Training takes offset 1 only, as the others are the same logits; evaluation takes all.
        """
        embeds = self.embed(shifted(batch.tokens, 1))
        attend = TTTAttention(self.rotary, self._prefix(batch))
        logits = self.logits(self.decode(embeds, embeds, attend, 0))
        return [DraftLogits(1 + on, shifted(logits, on)) for on in range(1 if self.training else self.config.steps)]

    @property
    def _layers(self) -> list[DecoderLayer]:
        return [cast("DecoderLayer", layer) for layer in self.layers]
