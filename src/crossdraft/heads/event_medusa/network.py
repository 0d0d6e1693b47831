"""Medusa heads on the event drafter: they predict its next tokens from its last feature.

    the event model's feature    h(t)         predicts x(t+1) by its own LM head
    head 1                       h(t), x(t+1)                 predicts x(t+2)
    head 2                       h(t), x(t+1), x(t+2)         predicts x(t+3)   …

As in Medusa (Cai et al. 2024) no decoder layer runs between the tokens; as in Hydra (Ankner et al. 2024) each head is
conditioned on the tokens since the feature. The "target" of `networks.base` is the event model here: its weights are
shared, a batch holds its features, and the tokens are the video model's answer.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights, shifted
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class DrafterMedusaConfig(HeadConfig):
    """Heads on an event model.

    Args:
        steps: K, the number of heads, which is also the largest number of tokens predicted.
        width: width of each head's inner layer.
    """

    steps: Count = 4
    width: Count = 256


class MedusaHead(nn.Module):
    """Head k: h + down(SiLU(up([h; e1; …; ek]))). `down` starts at zero, so the output is the event model's own."""

    def __init__(self, config: DrafterMedusaConfig, tokens: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear((1 + tokens) * config.hidden_size, config.width)
        self.down_proj = nn.Linear(config.width, config.hidden_size, bias=False)
        nn.init.zeros_(self.down_proj.weight)

    def forward(self, feature: Tensor, embeds: Sequence[Tensor]) -> Tensor:
        """[..., H] and k times [..., H] -> [..., H]."""
        return feature + self.down_proj(F.silu(self.up_proj(torch.cat((feature, *embeds), -1))))


class DrafterMedusa(Head):
    """Medusa heads on the event drafter."""

    config_class = DrafterMedusaConfig
    config: DrafterMedusaConfig

    def __init__(self, config: DrafterMedusaConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.heads = nn.ModuleList([MedusaHead(config, 1 + head) for head in range(config.steps)])

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        feature, embeds = self.last_feature(batch.hidden), self.embed(batch.tokens)
        since = [shifted(embeds, 1 + head) for head in range(len(self.heads))]
        rows = [head(feature, since[:count]) for count, head in enumerate(self.heads, 1)]
        return [DraftLogits(offset, self.lm_head(row)) for offset, row in enumerate(rows, 1)]

    def predict(self, feature: Tensor, tokens: Sequence[int], most: int, ends: Collection[int] = ()) -> Iterator[int]:
        """Predict the argmax continuation, at most `most` tokens, computed lazily.

        Args:
            feature: [H] feature of the event model at the position before `tokens`.
            tokens: one or more tokens after the feature; each uses up one head.
            ends: ids after which nothing is predicted.
        """
        embeds = list(self.embed(torch.tensor(tokens, device=self.draft_ids.device)))
        feature = feature.to(self.embeddings.dtype)
        for head in self.heads[len(tokens) - 1 :][:most]:
            token = self.config.draft_ids[int(self.lm_head(head(feature, embeds)).argmax())]
            yield token
            if token in ends:
                break
            embeds.append(self.embeddings[token].to(feature.dtype))
