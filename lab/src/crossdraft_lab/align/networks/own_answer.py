"""Adapters from the drafter's own answer to the target's, index by index: `token_projection` and `logit_alignment`.

    what the drafter says by itself    o(0)  o(1)  …  o(n-1)     o(i) came from its feature h(i) and its logits l(i)
    the adapter                        x(0)  x(1)  …  x(n-1)     the target's i-th token from the drafter's i-th

Both are of the project xifan-zhang/EventGPT (`feasible/token_alignment`), which paired two free-running answers so. Two
texts in other words have no such relation: 1.6 % of that pair's positions agree, and what these drafters accept is next
to nothing. They are here to be measured beside those that read the target's own words. Two things were wrong there and
are not here: a position after the drafter's own end is no example, and a logit knows which token it belongs to.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights, target_to_draft
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count
from crossdraft_lab.align.networks.base import Adapter, AdapterConfig

FLOOR = -30.0  # of a log-probability that is read
RESIDUAL = 0.1  # what the drafter's own logits are weighted by at first


@dataclass(frozen=True)
class OwnAnswer:
    """A drafter's own answers to B questions, padded on the right.

    Args:
        tokens: [B, n] ids.
        states: [B, n, S] its last features, from which each of them came.
        ids, log_probs: [B, n, K] its likeliest tokens there, the likeliest first, and their logarithms.
        lengths: [B] tokens of each.
    """

    tokens: Tensor
    states: Tensor
    ids: Tensor
    log_probs: Tensor
    lengths: Tensor

    @property
    def valid(self) -> Tensor:
        """Mask [B, n] that is true at the answer's tokens and false at padding."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]


@dataclass(frozen=True)
class IndexedBatch(TrainBatch):
    """The target's answers without their questions, behind one token of padding, and the drafter's own to the same."""

    own: OwnAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class OwnAnswerConfig(AdapterConfig):
    """Settings of both adapters.

    Args:
        width: of the MLP.
        own: most tokens of the drafter's answer.
    """

    width: Count
    own: Count = 64


class OwnAnswerAdapter(Adapter):
    """Adapter from the drafter's own answer to the target's. Subclasses define `translate`."""

    config_class = OwnAnswerConfig
    config: OwnAnswerConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: OwnAnswerConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        del self.project  # it reads another text than the target's

    @property
    def top(self) -> int:
        """K, the number of likeliest tokens that it reads."""
        return 1

    def translate(self, own: OwnAnswer) -> DraftLogits:
        """The target's answer, [B, n, D] logits of its i-th token from the drafter's i-th."""
        raise NotImplementedError

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        own = batch.own if isinstance(batch, IndexedBatch) else None
        return [] if own is None else [self.translate(own)]


class TokenProjection(OwnAnswerAdapter):
    """`token_projection`: row o(i) of a map [V, D], at first the identity; and an MLP of h(i), [S] -> [H].

    The map gives the drafts; features are predicted beside it, as in that project (MSE + 0.5 (1 - cos) of them, 0.1
    cross-entropy of the map). There the map was [V, V]; here its columns are the draft vocabulary.
    """

    def __init__(self, config: OwnAnswerConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        size, width = config.source_size * len(config.source_layers), config.width
        self.mlp = nn.Sequential(
            nn.Linear(size, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, config.hidden_size)
        )
        self.token_map = nn.Embedding(config.vocab_size, len(config.draft_ids))
        with torch.no_grad():
            self.token_map.weight.zero_()[self.draft_ids, torch.arange(len(config.draft_ids))] = 1

    def translate(self, own: OwnAnswer) -> DraftLogits:
        return DraftLogits(0, self.token_map(own.tokens), self.mlp(own.states), own.valid)


@dataclass(frozen=True, kw_only=True)
class LogitConfig(OwnAnswerConfig):
    """Settings of `logit_alignment`.

    Args:
        top: K, how many of the drafter's likeliest tokens are read.

    Raises:
        CrossdraftError: as `HeadConfig`, or the vocabulary has fewer.
    """

    top: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top > self.vocab_size:
            raise CrossdraftError(
                f"An adapter that reads the top={self.top} tokens needs a vocabulary of as many; this one has "
                f"{self.vocab_size}. Lower top."
            )


class LogitAlignment(OwnAnswerAdapter):
    """`logit_alignment`: (MLP(l) + r · l) / τ, l [K] being the drafter's largest log-probabilities, in their order.

    K values in, K out, each for the token that it belongs to; all other tokens share one learned logit. The loss is
    `distillation`, KL at a temperature of 2. There nothing said which tokens the K values belong to, so that the
    drafter's j-th best was compared with the target's j-th best; a second loss, MSE of the two sorted lists, means
    nothing where tokens are told apart, and is left out.
    """

    config_class = LogitConfig
    config: LogitConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    places: Tensor

    def __init__(self, config: LogitConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        width = config.width
        self.transform = nn.Sequential(
            nn.Linear(config.top, width), nn.LayerNorm(width), nn.GELU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, config.top),
        )  # fmt: skip
        self.residual = nn.Parameter(torch.tensor(RESIDUAL))
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.rest = nn.Parameter(torch.tensor(RESIDUAL * FLOOR))
        self.register_buffer("places", target_to_draft(self.draft_ids, config.vocab_size), persistent=False)

    @property
    def top(self) -> int:
        return self.config.top

    def translate(self, own: OwnAnswer) -> DraftLogits:
        seen = own.log_probs.clamp(min=FLOOR)
        values = (self.transform(seen) + self.residual * seen) / self.temperature.clamp(min=0.1)
        places, count = self.places[own.ids], len(self.draft_ids)
        # Tokens outside the draft vocabulary go to a column behind it.
        logits = self.rest.to(values).expand(*seen.shape[:2], count + 1)
        logits = logits.scatter(-1, torch.where(places < 0, count, places), values)[..., :count]
        return DraftLogits(0, logits, None, own.valid)
