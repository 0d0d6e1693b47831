"""Chimera (Zeng et al. 2024): a trigram encoder, and one layer whose keys and values are the target's last features.

    position t of the text        keys and values of the target's feature f(t)
    draft token j after it       keys and values of the layer's own output ĥ(t+j) instead
    queries                       trigram of the newest token and the two before it; no other row attends to them

The layer thus predicts the target's next feature, ĥ, and is trained to. A residual head on the target's last feature
adds its logits to those of ĥ.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, DecoderConfig, DecoderLayer, ResBlock, split_heads

GRAM = 3  # tokens


@dataclass(frozen=True, kw_only=True)
class ChimeraConfig(DecoderConfig):
    """A head with a trigram encoder.

    Args:
        gram_size: size that each of the three embeddings is projected to, a third of the encoder's width; `None` =
            the target's hidden size, as in the authors' code.
    """

    gram_size: int | None = None


class TrigramEncoder(nn.Module):
    """Three embeddings, concatenated -> ResBlock -> linear."""

    def __init__(self, hidden_size: int, gram_size: int | None) -> None:
        super().__init__()
        size = gram_size or hidden_size
        self.narrow = nn.Linear(hidden_size, size, bias=False) if gram_size else nn.Identity()
        self.block = ResBlock(GRAM * size)
        self.linear = nn.Linear(GRAM * size, hidden_size, bias=False)

    def forward(self, embeds: Tensor) -> Tensor:
        """[B, n + 2, H] -> [B, n, H], one row for three consecutive tokens."""
        single = self.narrow(embeds)
        count = embeds.shape[1] - GRAM + 1
        grams = torch.cat([single[:, first : first + count] for first in range(GRAM)], -1)
        return self.linear(self.block(grams))


class Chimera(Autoregressive):
    """Chimera's head. An output is [ĥ; the target's last feature at the draft's begin], 2H wide."""

    span = GRAM
    config_class = ChimeraConfig
    config: ChimeraConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: ChimeraConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.trigram = TrigramEncoder(config.hidden_size, config.gram_size)
        self.layer = DecoderLayer(config)
        # Starts at zero: the target's LM head, with which the authors start, predicts the root from this feature.
        self.residual_head = nn.Linear(config.hidden_size, len(config.draft_ids), bias=False)
        nn.init.zeros_(self.residual_head.weight)

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        last = self.last_feature(hidden)
        return torch.cat((last, last), -1)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return self.trigram(self.embed(tokens))

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        feature, last = features.chunk(2, -1)
        attention, count = self.layer.self_attn, embeds.shape[1]
        both = self.layer.input_layernorm(torch.cat((feature, embeds), 1))
        key, value = attention.keys_values(both)
        query = split_heads(attention.q_proj(both[:, count:]), attention.head_dim)
        own_kv = key[:, :, count:], value[:, :, count:]
        mixed = attend(0, query, key[:, :, :count], value[:, :, :count], own_kv)
        stream = embeds + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        stream = stream + self.layer.mlp(self.layer.post_attention_layernorm(stream))
        return torch.cat((stream, last), -1)

    def logits(self, outputs: Tensor) -> Tensor:
        predicted, last = outputs.chunk(2, -1)
        return self.lm_head(predicted) + self.residual_head(last)

    def predicted_features(self, outputs: Tensor) -> Tensor:
        return outputs.chunk(2, -1)[0]
