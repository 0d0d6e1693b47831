"""Chimera (Zeng et al. 2024): the last three tokens in one row, which reads the target's features in place of the text.

    place t of the text           the target's feature f(t), key and value only
    draft token j behind it       the layer's own output ĥ(t+j) in its stead, key and value only
    the row that attends          trigram of the newest token and the two in front of it; no other row attends to it

The layer thus extends the target's last features by one more, ĥ, which is trained to equal the target's there. A
residual head on the last true feature adds its logits to those of ĥ.
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
        gram_size: of each of the three embeddings as they enter the encoder, whose block is 3 times as wide; `None` =
            as the target has them, as the authors do.
    """

    gram_size: int | None = None


class TrigramEncoder(nn.Module):
    """Three embeddings side by side -> ResBlock -> linear."""

    def __init__(self, hidden_size: int, gram_size: int | None) -> None:
        super().__init__()
        size = gram_size or hidden_size
        self.narrow = nn.Linear(hidden_size, size, bias=False) if gram_size else nn.Identity()
        self.block = ResBlock(GRAM * size)
        self.linear = nn.Linear(GRAM * size, hidden_size, bias=False)

    def forward(self, embeds: Tensor) -> Tensor:
        """[B, n + 2, H] -> [B, n, H], one row for three neighbours."""
        single = self.narrow(embeds)
        count = embeds.shape[1] - GRAM + 1
        grams = torch.cat([single[:, first : first + count] for first in range(GRAM)], -1)
        return self.linear(self.block(grams))


class Chimera(Autoregressive):
    """See the module's text. An output is ĥ, and beside it the last feature of the target that its draft left from."""

    span = GRAM
    config_class = ChimeraConfig
    config: ChimeraConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: ChimeraConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.trigram = TrigramEncoder(config.hidden_size, config.gram_size)
        self.layer = DecoderLayer(config)
        # The authors begin with the target's rows here too; but of itself the old feature says the old token.
        self.residual_head = nn.Linear(config.hidden_size, len(config.draft_ids), bias=False)
        nn.init.zeros_(self.residual_head.weight)

    def fuse(self, hidden: Mapping[int, Tensor]) -> Tensor:
        last = self.last_feature(hidden)
        return torch.cat((last, last), -1)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return self.trigram(self.embed(tokens))

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        feature, left_from = features.chunk(2, -1)
        attention, count = self.layer.self_attn, embeds.shape[1]
        both = self.layer.input_layernorm(torch.cat((feature, embeds), 1))
        key, value = attention.keys_values(both)
        query = split_heads(attention.q_proj(both[:, count:]), attention.head_dim)
        own_kv = key[:, :, count:], value[:, :, count:]
        mixed = attend(0, query, key[:, :, :count], value[:, :, :count], own_kv)
        stream = embeds + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        stream = stream + self.layer.mlp(self.layer.post_attention_layernorm(stream))
        return torch.cat((stream, left_from), -1)

    def logits(self, outputs: Tensor) -> Tensor:
        guessed, left_from = outputs.chunk(2, -1)
        return self.lm_head(guessed) + self.residual_head(left_from)

    def predicted_features(self, outputs: Tensor) -> Tensor:
        return outputs.chunk(2, -1)[0]
