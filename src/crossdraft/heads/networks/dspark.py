"""DSpark (DeepSeek 2026, DeepSpec): DFlash's block with a Markov head, which biases a token by the one before it.

    block at position t  root x(t+1)   MASK     MASK     …
    predicts             x(t+2)        x(t+3)   x(t+4)   …        `root_predicts`; where not, as in DFlash
    logits               LM head of the row + W2 W1[the token before]

The block is one pass; only the bias, of a low rank, depends on the tokens that were chosen.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.dflash import DFlash, DFlashConfig
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class DSparkConfig(DFlashConfig):
    """A block drafter with a Markov head of rank `markov_rank`."""

    root_predicts: bool = True
    markov_rank: Count = 256


class DSpark(DFlash):
    """DSpark's head. Its publishers' confidence head is left out: trees grow by the drafts' own probabilities."""

    config_class = DSparkConfig
    config: DSparkConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: DSparkConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, len(config.draft_ids), bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.01)

    def after(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return super().after(logits, tokens) + self.markov_w2(self.markov_w1(tokens))
