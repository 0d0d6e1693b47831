r"""Recurrent heads: a state vector that starts from the target's last feature (Medusa, Hydra, ReDrafter).

    position              …   t          |  the draft
    the target's feature      f(t)       |                        the last one known
    the token after it        x(t+1)     |  d1         d2         x(t+1) is the root
    state                     s0         |  s1         s2         s0 = init_state(f(t), x(t+1)), s1 = next_state(s0, d1)
    predicts                  d1         |  d2         d3

No keys and values of the draft, no features fed back. Networks differ in what the state holds: nothing of the draft
(Medusa), every token (Hydra), a recurrent summary (ReDrafter).
"""

from dataclasses import dataclass

from torch import Tensor

from crossdraft.heads.networks.base import Head, HeadConfig, shifted
from crossdraft.heads.networks.layers import Attend, Rotary, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count

# An LM head of its own is initialised with this fraction of the target's. The last feature predicts the root, not what
# follows it, and a small target predicts it so confidently (a loss of 50 at full size) that the first training steps
# would only unlearn it.
INIT_SCALE = 0.1


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(HeadConfig):
    """A head with a state vector.

    Args:
        steps: tokens that are drafted in a row while training; in Medusa and Hydra, the number of heads.
        layers: ResBlocks of each head.
    """

    steps: Count = 5
    layers: Count = 1


class Recurrent(Head):
    """Base of the recurrent heads. Networks fill in `init_state`, `next_state` and `logits`."""

    config_class = RecurrentConfig
    config: RecurrentConfig
    cache_layers = 0  # layers that keep keys and values of the text
    rotary: Rotary  # only where there are such layers

    @property
    def max_depth(self) -> int | None:
        return self.config.steps

    def read(self, features: Tensor, attend: Attend) -> Tensor:
        """The target's last features [B, n, H] -> inputs of `init_state` [B, n, H] (Hydra++'s prefix attention)."""
        return features

    def init_state(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Features [..., H] and the tokens [...] after them -> states [..., S] after the root."""
        raise NotImplementedError

    def next_state(self, states: Tensor, tokens: Tensor) -> Tensor:
        """States [..., S] and the tokens [...] drafted there -> states [..., S'] after these."""
        raise NotImplementedError

    def logits(self, states: Tensor, depth: int) -> Tensor:
        """States [..., S] after nodes `depth` steps from the root -> logits [..., D]."""
        raise NotImplementedError

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        features, predictions = self.last_feature(batch.hidden), []
        if self.cache_layers:
            features = self.read(features, TTTAttention(self.rotary))
        states = self.init_state(features, shifted(batch.tokens, 1))
        for depth in range(self.config.steps):
            if depth:
                states = self.next_state(states, shifted(batch.tokens, 1 + depth))
            predictions.append(DraftLogits(1 + depth, self.logits(states, depth)))
        return predictions
