"""The fast draft head: the beginning of an answer in one step from the event encoder, without a language model.

    temporal features [T, H] ─┐
    mean of the question's     ├─> + position n ─> SiLU ─> logits of the answer's n-th token, n = 0 … N - 1
    token embeddings [H]      ─┘

Two layers and an LM head, over inputs normed to root mean square 1. The question is a bag of words, and the logits are
marginals, one distribution for each position, not conditioned on the answer's other tokens. It costs two matrix
products. As in `event_medusa`, the shared weights are the event model's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class FastConfig(HeadConfig):
    """A fast draft head.

    Args:
        steps: N, number of positions of the answer that it predicts.
        frames: T, number of temporal features of an event window.
        width: width of the inner layer.
        sees: false = a text-only control without visual features.
    """

    steps: Count = 24
    frames: Count = 5
    width: Count = 512
    sees: bool = True


class Fast(Head):
    """The fast draft head."""

    config_class = FastConfig
    config: FastConfig

    def __init__(self, config: FastConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        size = config.hidden_size
        self.see_proj = nn.Linear(config.frames * size, config.width, bias=False)
        nn.init.zeros_(self.see_proj.weight)  # it is initialised as its text-only control
        self.ask_proj = nn.Linear(size, config.width, bias=False)
        self.places = nn.Parameter(torch.randn(config.steps, config.width) * 0.02)
        self.down_proj = nn.Linear(config.width, size)

    @property
    def reads(self) -> tuple[int, ...]:
        return ()

    def marginal_logits(self, visual: Tensor | None, question: Tensor) -> Tensor:
        """Marginal logits of the answer's positions.

        Args:
            visual: [B, n, H] event features of a prompt, whose first T are the temporal ones; not read by a text-only
                control.
            question: [B, H] means that `question` returns.

        Returns:
            [B, N, D] logits.
        """
        inner = self.ask_proj(self._norm(question))
        if self.config.sees:
            if visual is None or visual.shape[1] < self.config.frames:
                raise CrossdraftError(
                    f"The fast head reads {self.config.frames} temporal features of an event window; got "
                    f"{'none' if visual is None else visual.shape[1]}."
                )
            temporal = self._norm(visual[:, : self.config.frames].to(inner.dtype))
            inner = inner + self.see_proj(temporal.flatten(1))
        return self.lm_head(self.down_proj(F.silu(inner[:, None] + self.places)))

    def _norm(self, features: Tensor) -> Tensor:
        return F.rms_norm(features, (self.config.hidden_size,), eps=1e-6)

    def question(self, tokens: Tensor) -> Tensor:
        """Mean [H] of the embeddings of a question's ids [n]."""
        return self.embed(tokens).mean(0)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """Refuse: the head predicts no position of a text.

        Raises:
            CrossdraftError: always.
        """
        raise CrossdraftError(
            "The fast draft head predicts whole beginnings of answers, not the next token of a text; train it on event "
            "clips (train.heads.event_task)."
        )
