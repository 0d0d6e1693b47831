"""The fast draft head: the beginning of an answer in one step from the event encoder, without a language model.

    temporal features [T, H] ─┐
    mean of the question's     ├─> + position n ─> SiLU ─> logits of the answer's n-th token, n = 0 … N - 1
    token embeddings [H]      ─┘

Two layers and an output layer, over inputs normed to root mean square 1. It knows no order of the question's words and
conditions on no token of the answer: its logits are marginals, one distribution for each position. It costs two matrix
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
        steps: N, places of the answer that it speaks of.
        frames: T, temporal features of an event window.
        width: of the inner layer.
        sees: false = it is shown zeros: a control that knows what was asked, and sees nothing.
    """

    steps: Count = 24
    frames: Count = 5
    width: Count = 512
    sees: bool = True


class Fast(Head):
    """See the module's text."""

    config_class = FastConfig
    config: FastConfig

    def __init__(self, config: FastConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        size = config.hidden_size
        self.see_proj = nn.Linear(config.frames * size, config.width, bias=False)
        nn.init.zeros_(self.see_proj.weight)  # what was asked says most: it begins as its blind control does
        self.ask_proj = nn.Linear(size, config.width, bias=False)
        self.places = nn.Parameter(torch.randn(config.steps, config.width) * 0.02)
        self.down_proj = nn.Linear(config.width, size)

    @property
    def reads(self) -> tuple[int, ...]:
        return ()

    def marginal_logits(self, visual: Tensor | None, question: Tensor) -> Tensor:
        """What may stand at each place of the answer.

        Args:
            visual: [B, n, H] the event features of a prompt, whose first T are the temporal ones; not looked at where
                the head is blind.
            question: [B, H] of `asked`.

        Returns:
            [B, N, D] logits.
        """
        inner = self.ask_proj(self._level(question))
        if self.config.sees:
            if visual is None or visual.shape[1] < self.config.frames:
                raise CrossdraftError(
                    f"The fast head looks at {self.config.frames} temporal features of an event window; got "
                    f"{'none' if visual is None else visual.shape[1]}."
                )
            seen = self._level(visual[:, : self.config.frames].to(inner.dtype))
            inner = inner + self.see_proj(seen.flatten(1))
        return self.lm_head(self.down_proj(F.silu(inner[:, None] + self.places)))

    def _level(self, features: Tensor) -> Tensor:
        return F.rms_norm(features, (self.config.hidden_size,), eps=1e-6)

    def asked(self, tokens: Tensor) -> Tensor:
        """[n] ids of a question -> [H], the mean of their embeddings."""
        return self.embed(tokens).mean(0)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """It says nothing of a place in a text.

        Raises:
            CrossdraftError: always.
        """
        raise CrossdraftError(
            "The fast draft head guesses whole beginnings of answers, not how a text goes on; train it on event clips "
            "(train.heads.fast)."
        )
