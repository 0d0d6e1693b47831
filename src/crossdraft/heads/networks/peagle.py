"""P-EAGLE (AWS 2026, 2602.01469): EAGLE-3 that drafts all tokens in one pass, over pairs of masks.

    position              …   t-1          t          |  the draft
    feature               f(t-1)       f(t)           |  MASK       MASK       one learned feature, before `fc`
    token after it        x(t)         x(t+1)         |  MASK       MASK       a token's embedding
    predicts                               d1         |  d2         d3         causal

No row depends on the tokens chosen for the rows before it. Layers behind the first are Llama's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights, shifted
from crossdraft.heads.networks.eagle3 import Eagle3, Eagle3Config
from crossdraft.heads.networks.layers import Attend, DecoderLayer, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class PEagleConfig(Eagle3Config):
    """P-EAGLE's settings; `steps` is the number of tokens drafted in one pass.

    Args:
        layers: number of its layers.
        mask_token: id whose embedding is the masks'.
        own_embeddings: it has token embeddings of its own; if not, the target's.

    Raises:
        CrossdraftError: as `Eagle3Config`, or `mask_token` is none of the target's ids.
    """

    layers: Count = 4
    mask_token: int = 0
    own_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mask_token < self.vocab_size:
            raise CrossdraftError(
                f"P-EAGLE's mask_token {self.mask_token} is none of the target's {self.vocab_size} ids."
            )


class PEagle(Eagle3):
    """P-EAGLE's head."""

    config_class = PEagleConfig
    config: PEagleConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: PEagleConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.cache_layers = config.layers
        self.layers = nn.ModuleDict({str(layer): DecoderLayer(config) for layer in range(1, config.layers)})
        self.mask_hidden = nn.Parameter(torch.randn(self.fc.in_features))
        if config.own_embeddings:
            self.token_embeddings = nn.Embedding.from_pretrained(shared.embeddings.clone(), freeze=False)

    @property
    def masks(self) -> int:
        return self.config.steps - 1

    @property
    def max_depth(self) -> int:
        return self.config.steps

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.token_embeddings.weight if self.config.own_embeddings else self.embeddings)

    def mask_pair(self) -> tuple[Tensor, Tensor]:
        parts = zip(self.mask_hidden.chunk(len(self.level_scales)), self.level_scales, strict=True)
        feature = self.project(torch.cat([part * scale for part, scale in parts]))
        return self.embed(self.draft_ids.new_tensor(self.config.mask_token)), feature

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        rows = self.midlayer(embeds, features, attend)
        for index, layer in enumerate(self.layers.values(), 1):
            rows = layer(rows, attend, index)
        return rows

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        features, attend, predictions = self.fuse(batch.hidden), TTTAttention(self.rotary), list[DraftLogits]()
        embeds = self.embed(shifted(batch.tokens, 1))
        for step in range(self.config.steps):
            outputs = self.decode(embeds, features, attend.at(step), step)
            predictions.append(self.prediction(1 + step, outputs))
            embeds, features = (row.expand_as(features) for row in self.mask_pair())
        return predictions
