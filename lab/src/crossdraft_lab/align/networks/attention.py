"""Adapters that attend to earlier positions: `l4`, and `l5`, which can draft without the event model.

The project xifan-zhang/EventGPT, whose levels these are, lets each position of `l4` see later ones, which are unknown
while drafting; here all attention is causal.

`l5` in training, as in EAGLE-3's training-time test (Li et al. 2025), and while it drafts:

    step 0   the drafter's feature h(t)        the token x(t)      ->  g(t)      the target's feature at t
    step 1   its own output g(t)               the token x(t+1)    ->  g(t+1)    … at t + 1, without the drafter
    step 2   its own output g(t+1)             the token x(t+2)    ->  g(t+2)

`l5f` also reads the target's own features, as far as it has verified, and `b1` reads no others:

    position t                   the target's feature before it    the drafter's feature    the token
    verified                     f(t-1)                            h(t)                     x(t)       ->  g(t)
    drafted                      its own output g(t-1)             h(t)                     x(t)       ->  g(t)
    before the target has        a learned vector                  h(t)                     x(t)       ->  g(t)
    said anything

A prediction at t is of the target's feature at t, f(t): so the pair (f(t-1), x(t)) is EAGLE's input, and `b1`, of the
project xifan-zhang/EventGPT, is EAGLE's head in `l5`'s form: it shows the gain of the target's feature over the
drafter's. There both were scored at the position of the feature that they were given, where the identity is perfect.

One training step is teacher-forced; with more steps (`b1r`, `l5fr`) the adapter reads its own outputs, as in EAGLE-3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights, shifted
from crossdraft.heads.networks.layers import Attend, DecoderConfig, DecoderLayer, KeyValue, Rotary, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft_lab.align.networks.base import TARGET, Adapter, AdapterConfig, Past, identity_projection
from crossdraft_lab.align.networks.pointwise import ALPHA


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(AdapterConfig, DecoderConfig):
    """An adapter with a decoder layer; `steps` counts the steps of the training-time test."""


@dataclass(frozen=True, kw_only=True)
class AutoregressiveConfig(AttentionConfig):
    """Settings of `l5`.

    Args:
        reads_tokens: add the target's embedding of the token at each position.
        positions: number of learned positions of a text; later tokens get no position embedding.
    """

    reads_tokens: bool = True
    positions: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions < 1:
            raise CrossdraftError(f"An adapter has learned positions for {self.positions} tokens; give it 1 or more.")


class Unrotated(Rotary):
    """No rotary positions: heads are returned unchanged."""

    def __init__(self) -> None:
        super().__init__(2, 1.0, 1)

    def forward(self, heads: Tensor, positions: Tensor) -> Tensor:
        return heads


class PastAttention:
    """Causal attention of new positions to past ones and to one another, as an `Attend` function."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.new: list[KeyValue] = []

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.past:
            before = self.past[layer]
            key, value = torch.cat((before[0], key), 2), torch.cat((before[1], value), 2)
        self.new.append((key, value))
        count, length, grouped = query.shape[2], key.shape[2], key.shape[1] != query.shape[1]
        if count in {1, length}:
            return F.scaled_dot_product_attention(query, key, value, is_causal=count > 1, enable_gqa=grouped)
        mask = torch.ones(count, length, dtype=torch.bool, device=query.device).tril_(length - count)
        return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=grouped)


class AttentionAdapter(Adapter):
    """`l4`: g + α · (layer(g) − g) and a norm, where g = project(h) and `layer` is a causal decoder layer."""

    config_class = AttentionConfig

    def __init__(self, config: AttentionConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.layer = DecoderLayer(config)
        self.alpha = nn.Parameter(torch.tensor(ALPHA))
        self.norm = nn.LayerNorm(config.hidden_size)

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        attend = PastAttention(past)
        return self.run(self.project(source), attend), tuple(attend.new)

    def run(self, rows: Tensor, attend: Attend) -> Tensor:
        """[B, n, H] -> [B, n, H]."""
        return self.norm(rows + self.alpha * (self.layer(rows, attend) - rows))


class AutoregressiveAdapter(AttentionAdapter):
    """`l5`: `l4` with positions and tokens, which also reads its own outputs; see the module's text."""

    config_class = AutoregressiveConfig
    embeds_tokens = True
    drafts_alone = True

    def __init__(self, config: AutoregressiveConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.steps = config.steps
        self.own_proj = identity_projection(config.hidden_size, config.hidden_size)
        self.embed_positions = nn.Parameter(torch.zeros(config.positions, config.hidden_size))
        self.embed_proj = identity_projection(config.hidden_size, config.hidden_size) if config.reads_tokens else None

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        return self._step(self.project(source), tokens, past)

    def go_on(self, features: Tensor, tokens: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Predict the target's next feature without the drafter.

        Args:
            features: [B, 1, H] the adapter's own output at the position before.
            tokens: [B, 1] the token after that position.
            past: keys and values of the positions so far.

        Returns:
            As `align`.
        """
        return self._step(self.own_proj(features), tokens, past)

    def _step(self, rows: Tensor, tokens: Tensor, past: Past) -> tuple[Tensor, Past]:
        attend, start = PastAttention(past), past[0][0].shape[2] if past else 0
        return self.run(rows + self._at(tokens, start), attend), tuple(attend.new)

    def _at(self, tokens: Tensor, start: int) -> Tensor:
        """Embed the tokens [B, n] and their positions from `start` on: [B, n, H]."""
        last = len(self.embed_positions) - 1
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device).clamp(max=last)
        known = self.embed_positions[positions][None]
        return known if self.embed_proj is None else known + self.embed_proj(self.embed(tokens).to(known))

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        attend, predictions = TTTAttention(Unrotated()), []
        rows, tokens = self.project(self.source(batch.hidden)), batch.tokens
        for step in range(self.steps):
            features = self.run(rows + self._at(tokens, step), attend.at(step))
            predictions.append(self.prediction(step, features))
            rows, tokens = self.own_proj(features), shifted(tokens, 1)
        return predictions


class TargetAdapter(AutoregressiveAdapter):
    """`b1`: `l5` on the target's features; see the module's docstring. `own_proj` reads these, and its own outputs."""

    reads_target = True

    def __init__(self, config: AutoregressiveConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        del self.project  # projects the drafter's features, which are not read
        self.unknown = nn.Parameter(torch.zeros(config.hidden_size))

    def align(self, source: Tensor, tokens: Tensor, past: Past = ()) -> tuple[Tensor, Past]:
        """Align as `Adapter.align` does, at positions without a target feature before them."""
        return self._step(self.fused(source, self.unknown.expand(*tokens.shape, -1)), tokens, past)

    def fuse(self, source: Tensor, before: Tensor, tokens: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Align with `before` [B, n, H]: the target's feature, or the adapter's own output, one position earlier."""
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
        """Project `TARGET` [B, T, H], each one position late; in the question, use the vector for unknown features."""
        features = self.own_proj(batch.hidden[TARGET]).roll(1, 1)
        known = torch.arange(features.shape[1], device=features.device) >= batch.starts[:, None]
        return torch.where(known[..., None], features, self.unknown)


class GatedAdapter(TargetAdapter):
    """`l5f`: g · h + (1 − g) · f, where h and f are projected and g = σ(W [h; f]) is half at first."""

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
