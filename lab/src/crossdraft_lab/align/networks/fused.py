"""Adapters that also read the target's own features, as far as it has verified: `l5f`, and `b1` which reads no others.

    position t                   the target's feature before it    the drafter's feature    the token
    verified                     f(t-1)                            h(t)                     x(t)       ->  g(t)
    drafted                      its own output g(t-1)             h(t)                     x(t)       ->  g(t)
    before the target has        a learned vector                  h(t)                     x(t)       ->  g(t)
    said anything

A prediction at t is of the target at t, f(t): so the pair (f(t-1), x(t)) is EAGLE's, and `b1`, of the project
xifan-zhang/EventGPT, is that head in `l5`'s form: what can be had of the target's feature instead of the drafter's.
There both were scored at the position of the feature that they were given, where the identity is perfect.

One step of training is teacher-forced; more of them (`b1r`, `l5fr`) are its own rollout, EAGLE-3's training-time test.
"""

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.base import SharedWeights, shifted
from crossdraft.heads.networks.layers import TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft_lab.align.networks.attention import AutoregressiveAdapter, AutoregressiveConfig, Unrotated
from crossdraft_lab.align.networks.base import TARGET, Past, identity_projection


class TargetAdapter(AutoregressiveAdapter):
    """`b1`: `l5` on the target's features; see the module's text. `own_proj` reads these, and its own outputs."""

    reads_target = True

    def __init__(self, config: AutoregressiveConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        del self.project  # of the drafter's features
        self.unknown = nn.Parameter(torch.zeros(config.hidden_size))

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        """As `Adapter.align`, of positions before which the target has said nothing."""
        return self._step(self.fused(source, self.unknown.expand(*tokens.shape, -1)), tokens, past)

    def fuse(self, source: Tensor, before: Tensor, tokens: Tensor, past: Past) -> tuple[Tensor, Past]:
        """As `align`; `before` [B, n, H] are the target's features one position before each, or its own outputs."""
        return self._step(self.fused(source, self.own_proj(before)), tokens, past)

    def fused(self, source: Tensor, before: Tensor) -> Tensor:
        """The drafter's features [B, n, S · layers], and projected ones of the target [B, n, H] -> rows [B, n, H]."""
        return before

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        attend, predictions = TTTAttention(Unrotated()), []
        source, tokens, before = self.source(batch.hidden), batch.tokens, self._before(batch)
        for step in range(self.steps):
            features = self.run(self.fused(source, before) + self._at(tokens, step), attend.at(step))
            predictions.append(self.prediction(step, features))
            source, tokens, before = shifted(source, 1), shifted(tokens, 1), self.own_proj(features)
        return predictions

    def _before(self, batch: TrainBatch) -> Tensor:
        """[B, T, H] of `TARGET` one position before each, projected; in a question, all is unknown."""
        features = self.own_proj(batch.hidden[TARGET]).roll(1, 1)
        known = torch.arange(features.shape[1], device=features.device) >= batch.starts[:, None]
        return torch.where(known[..., None], features, self.unknown)


class GatedAdapter(TargetAdapter):
    """`l5f`: g · h + (1 − g) · f, where h and f are projected and g = σ(W [h; f]), half at first."""

    drafts_alone = False

    def __init__(self, config: AutoregressiveConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.project = identity_projection(config.source_size * len(config.source_layers), config.hidden_size)
        self.gate_proj = nn.Linear(2 * config.hidden_size, config.hidden_size)
        nn.init.zeros_(self.gate_proj.weight)
        nn.init.zeros_(self.gate_proj.bias)

    def fused(self, source: Tensor, before: Tensor) -> Tensor:
        own = self.project(source)
        gate = self.gate_proj(torch.cat((own, before), -1)).sigmoid()
        return gate * own + (1 - gate) * before
