"""Adapters from the drafter's own answer to the target's, index by index: `token_projection` and `logit_alignment`.

    the drafter's own answer           o(0)  o(1)  …  o(n-1)     o(i) came from its feature h(i) and its logits l(i)
    the adapter                        x(0)  x(1)  …  x(n-1)     the target's i-th token from the drafter's i-th

Both come from the project xifan-zhang/EventGPT (`feasible/token_alignment`), which paired two free-running answers so.
Texts in different words have no such relation: 1.6 % of that pair's positions agree, and these drafters' accepted
length is near zero. They are kept for comparison with adapters that read the target's words. Two errors of that project
are corrected here: a position after the drafter's own end is no example, and a logit is assigned to its token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count
from crossdraft_lab.align.networks.base import Adapter, AdapterConfig
from crossdraft_lab.objective import target_to_draft

FLOOR = -30.0  # least log-probability that is read
RESIDUAL = 0.1  # initial weight of the drafter's own logits


@dataclass(frozen=True)
class OwnAnswer:
    """A drafter's own answers to B questions, padded on the right.

    Args:
        tokens: [B, n] ids.
        states: [B, n, S] its last features, from which the tokens came.
        ids, log_probs: [B, n, K] its likeliest tokens there, the likeliest first, and their log probabilities.
        lengths: [B] number of tokens of each answer.
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
    """The target's answers without their questions, after one padding token, and the drafter's answers."""

    own: OwnAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class OwnAnswerConfig(AdapterConfig):
    """Settings of both adapters.

    Args:
        width: width of the MLP.
        own: largest number of tokens of the drafter's answer.
    """

    width: Count
    own: Count = 64


class OwnAnswerAdapter(Adapter):
    """Adapter from the drafter's own answer to the target's. Subclasses define `translate`."""

    config_class = OwnAnswerConfig
    config: OwnAnswerConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: OwnAnswerConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        del self.project  # not used: it reads another text than the target's

    @property
    def top(self) -> int:
        """K, the number of likeliest tokens that the adapter reads."""
        return 1

    def translate(self, own: OwnAnswer) -> DraftLogits:
        """Predict the target's answer: [B, n, D] logits of its i-th token from the drafter's i-th."""
        raise NotImplementedError

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        own = batch.own if isinstance(batch, IndexedBatch) else None
        return [] if own is None else [self.translate(own)]


class TokenProjection(OwnAnswerAdapter):
    """`token_projection`: row o(i) of a map [V, D], at first the identity; and an MLP of h(i), [S] -> [H].

    The map gives the drafts; features are predicted beside it, as in the original project (MSE + 0.5 (1 - cos) of
    features, 0.1 cross-entropy of the map). There the map was [V, V]; here its columns are the draft vocabulary.
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
        top: K, number of the drafter's likeliest tokens that are read.

    Raises:
        CrossdraftError: as `HeadConfig`, or the vocabulary has fewer tokens.
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

    K values in, K out, each for its own token; all other tokens share one learned logit. The loss is `distillation`, KL
    at a temperature of 2. In the original the K values had no tokens, so that the drafter's j-th best was compared with
    the target's j-th best; its second loss, MSE of the two sorted lists, is meaningless once tokens are distinguished,
    and is left out.
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
