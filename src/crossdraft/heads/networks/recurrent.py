r"""Heads that stand on the target's last feature and remember what was drafted since: Medusa, Hydra, ReDrafter.

    place                 …   t          |  the draft
    the target's feature      f(t)       |                        the last one known
    the token behind it       x(t+1)     |  d1         d2         x(t+1) is the root
    state                     s0         |  s1         s2         s0 = enter(f(t), x(t+1)), s1 = follow(s0, d1), …
    says                      law of d1  |  law of d2  law of d3

A state is one vector, and no more is known behind a node than that: no keys and values of the draft, no features that
are fed back. Networks differ in what a state keeps: nothing (Medusa), every token (Hydra), a digest (ReDrafter).
"""

from dataclasses import dataclass

from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, shifted
from crossdraft.heads.networks.layers import Attend, Rotary, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch

# Heads' own rows begin as this much of the target's. The feature they stand on says the root, not what follows it; a
# small target is so sure of that (a loss of 50 a place at full size) that the first steps would go into unlearning it.
BEGIN = 0.1


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(HeadConfig):
    """A head whose drafts live in a state.

    Args:
        steps: tokens that are drafted in a row while training; of Medusa and Hydra, how many heads there are.
        layers: ResBlocks of each head.

    Raises:
        CrossdraftError: one of these is below 1.
    """

    steps: int = 5
    layers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.steps, self.layers) < 1:
            raise CrossdraftError("A head needs steps and layers of 1 or more.")


class Recurrent(Head):
    """See the module's text. Networks fill in `init_state`, `next_state` and `say`, and what of the rest is theirs."""

    depth = 0  # layers that keep keys and values of the text
    config: RecurrentConfig
    rotary: Rotary  # only where there are such layers

    @property
    def levels(self) -> int | None:
        """How many tokens in a row it can draft; `None` = any number."""
        return self.config.steps

    def read(self, features: Tensor, attend: Attend) -> Tensor:
        """The target's last features [B, n, H] -> what drafts begin from, [B, n, H]."""
        return features

    def init_state(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Features [..., H] and the tokens [...] behind them -> states [..., S] behind the root."""
        raise NotImplementedError

    def next_state(self, states: Tensor, tokens: Tensor) -> Tensor:
        """States [..., S] and the tokens [...] drafted there -> states [..., S'] behind these."""
        raise NotImplementedError

    def say(self, states: Tensor, level: int) -> Tensor:
        """States [..., S] behind nodes `level` steps from the root -> logits [..., D]."""
        raise NotImplementedError

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        features, predictions = self.last(batch.hidden), []
        if self.depth:
            features = self.read(features, TTTAttention(self.rotary))
        states = self.init_state(features, shifted(batch.tokens, 1))
        for level in range(self.config.steps):
            if level:
                states = self.next_state(states, shifted(batch.tokens, 1 + level))
            predictions.append(DraftLogits(1 + level, self.say(states, level)))
        return predictions
