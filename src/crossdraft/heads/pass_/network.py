"""PaSS (Monea et al. 2023): L learned embeddings that the target itself reads in place of unknown tokens."""

from dataclasses import dataclass

from torch import nn

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class PassConfig(HeadConfig):
    """Look-ahead embeddings.

    Args:
        steps: L, the number of embeddings, and so of a draft's tokens.
    """

    steps: Count = 4


class LookaheadEmbeddings(Head):
    """`ahead` [L, H]: initialised with the mean embedding of the draft vocabulary."""

    owns_head = False
    config_class = PassConfig
    config: PassConfig

    def __init__(self, config: PassConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        usual = self.embed(self.draft_ids).mean(0)
        self.ahead = nn.Parameter(usual.repeat(config.steps, 1).detach())

    @property
    def reads(self) -> tuple[int, ...]:
        return ()

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """Refuse: only the target's own layers compute the outputs of these rows.

        Raises:
            CrossdraftError: always.
        """
        raise CrossdraftError(
            "Look-ahead embeddings are read by the target, not by a head; train them with the target at hand "
            "(train.heads.pass_task)."
        )
