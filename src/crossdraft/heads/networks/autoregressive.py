"""Autoregressive heads (EAGLE and its kin): each row is a pair of a feature and the token after it.

    position              …   t-1          t          |  the draft
    the target's feature      f(t-1)       f(t)       |  g(t+1)     g(t+2)     outputs, fed back as features
    the token after it        x(t)         x(t+1)     |  d1         d2         x(t+1) is the root
    predicts                               d1         |  d2         d3

They differ in feature fusion, in how a pair becomes a row, and in the visual prefix.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from crossdraft.heads.networks.base import Head, SharedWeights, shifted
from crossdraft.heads.networks.layers import Attend, DecoderConfig, PrefixKV, Rotary, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch


class Autoregressive(Head):
    """Base of the autoregressive heads. Networks define `decode`, and override other methods where they differ."""

    config_class = DecoderConfig
    config: DecoderConfig
    cache_layers = 1  # layers that keep keys and values
    masks = 0  # rows of `mask_pair` behind the last pair, where a draft is one pass

    def __init__(self, config: DecoderConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.rotary = Rotary(config.head_dim, config.rope_theta, config.max_positions)

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Fuse captured features [..., H] of several layers to [..., H]."""
        return self.last_feature(hidden)

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor) -> PrefixKV | None:
        """Compute the visual prefix; `None` = no prefix. Called if the head has `visual_reads`.

        Args:
            visual: layer -> [B, N, H] features at the prompt's visual piece.
            ids: [B, N + 1] ids of this piece and of the text's first token.
        """
        return None

    def add_global(self, features: Tensor, global_feature: Tensor | None) -> Tensor:
        """Features [B, n, H] of the text, or outputs fed back, with the prefix's global visual vector added."""
        return features

    def mask_pair(self) -> tuple[Tensor, Tensor]:
        """Embedding and feature [H] of a mask; called if there are `masks`."""
        raise NotImplementedError

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        """Decode pairs [B, n, H] to outputs [B, n, H]; `step` 0 reads the target's features, later steps outputs."""
        raise NotImplementedError

    def fed_back(self, outputs: Tensor) -> Tensor:
        """The part of the outputs [..., H] that is the next step's feature [..., H]."""
        return outputs

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs [..., H] to logits [..., D]."""
        return self.lm_head(outputs)

    def predicted_features(self, outputs: Tensor) -> Tensor | None:
        """Prediction of the target's last features, if the head is trained to predict them."""
        return None

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        features, embeds = self.fuse(batch.hidden), self.embed(batch.tokens)
        prefix = self._prefix(batch)
        global_feature = None if prefix is None else prefix.global_feature
        attend, predictions = TTTAttention(self.rotary, prefix), []
        for step in range(self.config.steps):
            pairs = shifted(embeds, 1 + step), self.add_global(features, global_feature)
            outputs = self.decode(*pairs, attend.at(step), step)
            predictions.append(self.prediction(1 + step, outputs))
            features = self.fed_back(outputs)
        return predictions

    def prediction(self, offset: int, outputs: Tensor) -> DraftLogits:
        """Prediction at an offset, from outputs [B, T, H]."""
        return DraftLogits(offset, self.logits(outputs), self.predicted_features(outputs))

    def _prefix(self, batch: TrainBatch) -> PrefixKV | None:
        ids = batch.visual_ids
        if not self.visual_reads or ids is None or not ids.shape[1]:
            return None
        return self.prefix(batch.visual, torch.cat((ids, batch.tokens[:, :1]), 1))
