"""`token`: rewrites the drafter's own answer in the target's words, token by token; no feature of the drafter is read.

    reads     the question, the drafter's own answer with its end, and then the target's answer x(s) … x(t)
    predicts  x(t + 1), by the target's LM head

The TokenAdapter of the project xifan-zhang/EventGPT maps the drafter's i-th token to the target's (i + 1)-th. Answers
in different words have no such relation; here the whole answer is read before a word is predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, DecoderLayer, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count
from crossdraft_lab.align.networks.attention import AttentionConfig, PastAttention, Unrotated
from crossdraft_lab.align.networks.base import Adapter, Past


@dataclass(frozen=True, kw_only=True)
class TokenConfig(AttentionConfig):
    """Settings of `token`.

    Args:
        layers: number of layers of the decoder.
        own: largest number of tokens of the drafter's answer that are read.
        positions: number of learned positions of question and answers; later tokens get no position embedding.
    """

    layers: Count = 2
    own: Count = 64
    positions: Count = 512


class TokenAdapter(Adapter):
    """Causal decoder on the target's token embeddings; see the module's docstring."""

    config_class = TokenConfig
    config: TokenConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    embeds_tokens = True

    def __init__(self, config: TokenConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        del self.project  # projects the drafter's features, which are not read
        self.embed_positions = nn.Parameter(torch.randn(config.positions, config.hidden_size) * 0.02)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.hidden_size)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        attend = PastAttention(past)
        return self._run(tokens, past[0][0].shape[2] if past else 0, attend), tuple(attend.new)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        return [self.prediction(0, self._run(batch.tokens, 0, TTTAttention(Unrotated()).at(0)))]

    def _run(self, tokens: Tensor, start: int, attend: Attend) -> Tensor:
        """Run ids [B, n] at the positions from `start` on -> [B, n, H]."""
        last = len(self.embed_positions) - 1
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device).clamp(max=last)
        rows = self.embed(tokens).to(self.embed_positions) + self.embed_positions[positions]
        for index, layer in enumerate(cast("Sequence[DecoderLayer]", self.layers)):
            rows = layer(rows, attend, index)
        return self.norm(rows)
