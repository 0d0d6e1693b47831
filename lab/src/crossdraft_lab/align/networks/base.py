"""The interface of all adapters: a drafter's features in, the target's last feature out; logits by the target's head.

    the drafter's features   h(s-1)    h(s)      h(s+1)   …      s = position where the answer begins
    the adapter              g(s-1)    g(s)      g(s+1)   …      as wide as the target's features
    the target's LM head     -> x(s)   -> x(s+1) -> x(s+2)

At position t an adapter predicts the target's feature at t, from the drafter's feature after the same tokens. So the
drafted tokens come from the target's LM head, not from the drafter's. The two models differ in width: `project` maps
one width to the other, and begins as the identity, padded with zeros. Training batches hold the drafter's features in
place of the target's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.layers import KeyValue
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count

TARGET = -1
"""Key of the target's last features among the hidden states of a batch, whose other ones are the drafter's."""

Past = tuple[KeyValue, ...]
"""Keys and values [B, heads, n, d] of the positions so far, one pair for each attention layer."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(HeadConfig):
    """Settings of every adapter; `hidden_size`, `vocab_size` and `num_layers` are the target's.

    Args:
        drafter: fingerprint of the model whose features it reads.
        source_size: width of these features.
        source_layers: hidden states of the drafter that it reads, ascending; the last is after its final norm.

    Raises:
        CrossdraftError: as `HeadConfig`, or layers that do not ascend.
    """

    drafter: str
    source_size: Count
    source_layers: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.source_layers
        if not layers or min(layers) < 0 or list(layers) != sorted(set(layers)):
            raise CrossdraftError(
                f"An adapter's source_layers must be one or more hidden states that ascend, such as 2,16,32; not "
                f"{layers}."
            )


class Adapter(Head):
    """Adapter from a drafter's features to the target's; see the module's docstring. Subclasses define `align`.

    `extras` names what `extra_losses` returns.
    """

    config_class = AdapterConfig
    config: AdapterConfig
    owns_head = False
    embeds_tokens = False  # true if it reads the target's embeddings
    drafts_alone = False  # true if it can draft from its own outputs alone
    reads_target = False  # true if it reads the target's features, `TARGET` in training
    extras: tuple[str, ...] = ()
    fuses = False  # true if it reads several layers of the drafter by default

    def __init__(self, config: AdapterConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        if not self.embeds_tokens:
            self.register_buffer("embeddings", self.embeddings[:0], persistent=False)
        self.project = identity_projection(config.source_size * len(config.source_layers), config.hidden_size)

    @property
    def reads(self) -> tuple[int, ...]:
        """Hidden states of the drafter that the adapter reads."""
        return self.config.source_layers

    def source(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Features [..., S] of each layer -> [..., S · layers].

        The levels of a residual stream differ in size by far more than in content, so several of them are normalised
        to one size first. A single one is left unchanged.
        """
        layers = [hidden[layer] for layer in self.reads]
        if len(layers) == 1:
            return layers[0]
        return torch.cat([F.rms_norm(layer, layer.shape[-1:]) for layer in layers], -1)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        """Predict the target's last features at the next positions of a text.

        Args:
            source: [B, n, S · layers] features from `source`.
            tokens: [B, n] ids at these positions.
            past: the second value that this function returned for the positions before.

        Returns:
            [B, n, H], and the past with these positions; `()` where a position does not depend on others.
        """
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        """[..., H] features of the target -> [..., D] logits over the draft vocabulary."""
        return self.lm_head(features)

    def prediction(self, offset: int, features: Tensor) -> DraftLogits:
        """Features [B, T, H] as the prediction of the target `offset` positions later."""
        return DraftLogits(offset, self.logits(features), features)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """Predict the target's own feature at every position: offset 0."""
        features, _ = self.align(self.source(batch.hidden), batch.tokens)
        return [self.prediction(0, features)]

    def extra_losses(self, batch: TrainBatch, predictions: Sequence[DraftLogits]) -> dict[str, Tensor]:
        """Further losses by name, one number each, that a recipe may weight."""
        return {}


def identity_projection(size: int, out: int) -> nn.Linear:
    """Linear layer that is initialised as the identity, padded with zeros or cut off."""
    layer = nn.Linear(size, out)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
