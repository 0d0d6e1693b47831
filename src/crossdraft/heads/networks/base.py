"""The interface of all heads, their configuration, and the weights that they share with the target."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, cast, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from crossdraft.checks import whole
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Settings that every head has: the target's sizes. A field of the type `Count` must be 1 or more.

    Args:
        hidden_size: H, hidden width of the target.
        vocab_size: V, size of the target's vocabulary.
        num_layers: L, number of the target's layers: its feature after the final norm is number L.
        draft_ids: [D] ids that the head may draft, ascending. Answers use few of a target's ids, and a short LM head is
            fast (FR-Spec: Zhao et al. 2025); other ids are never drafted.

    Raises:
        CrossdraftError: a size or count below 1, ids that do not ascend, or ids outside the vocabulary.
    """

    hidden_size: int
    vocab_size: int
    num_layers: int
    draft_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            if kind == Count:
                whole(f"A head's {name}", getattr(self, name))
        ids = self.draft_ids
        rising = all(a < b for a, b in pairwise(ids))
        if not ids or not rising or ids[0] < 0 or ids[-1] >= self.vocab_size:
            raise CrossdraftError(
                f"A head's draft_ids must rise from 0 or more to less than {self.vocab_size}, each once."
            )


@dataclass(frozen=True)
class SharedWeights:
    """Weights of the target that heads use and do not store.

    Args:
        embeddings: [V, H] token embeddings.
        lm_head: [V, H] output embeddings.
    """

    embeddings: Tensor
    lm_head: Tensor

    @classmethod
    def of(cls, model: PreTrainedModel) -> "SharedWeights":
        """Take the weights of a `transformers` model; views, not copies where its layers are not packed."""
        embeddings, lm_head = cast("Any", model.get_input_embeddings()), cast("Any", model.get_output_embeddings())
        return cls(embeddings.weight.detach(), lm_head.weight.detach())


class Head(nn.Module):
    """A network that predicts the target's next tokens.

    `lm_head` [D, H] maps its outputs to logits over the draft vocabulary: weights of its own, or (`owns_head` false)
    the target's, which are neither trained nor stored.

    Args:
        config: configuration, an instance of `config_class`.
        shared: the target's weights.

    Raises:
        CrossdraftError: the target has other sizes than the config.
    """

    config_class: ClassVar[type[HeadConfig]] = HeadConfig
    owns_head = True
    draft_ids: Tensor
    embeddings: Tensor

    def __init__(self, config: HeadConfig, shared: SharedWeights) -> None:
        super().__init__()
        wanted = (config.vocab_size, config.hidden_size)
        if tuple(shared.embeddings.shape) != wanted:
            raise CrossdraftError(
                f"The head was made for a target of {wanted[0]} tokens and {wanted[1]} features; this one has "
                f"{' and '.join(map(str, shared.embeddings.shape))}."
            )
        self.config = config
        self.register_buffer("draft_ids", torch.tensor(config.draft_ids), persistent=False)
        self.register_buffer("embeddings", shared.embeddings, persistent=False)  # in the head's own dtype
        self.lm_head = nn.Linear(config.hidden_size, len(config.draft_ids), bias=False)
        with torch.no_grad():  # an LM head of its own starts from the target's rows
            self.lm_head.weight.copy_(shared.lm_head[self.draft_ids.to(shared.lm_head.device)])
        self.lm_head.requires_grad_(self.owns_head)

    @property
    def reads(self) -> tuple[int, ...]:
        """Hidden states of the target that the head reads at the text's positions."""
        return (self.config.num_layers,)

    @property
    def visual_reads(self) -> tuple[int, ...]:
        """Hidden states of the target that the head reads at the prompt's visual positions."""
        return ()

    @property
    def max_depth(self) -> int | None:
        """Largest number of tokens in a row that the head can draft; `None` = any number."""
        return None

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] ids -> [..., H] the target's embeddings."""
        return F.embedding(tokens, self.embeddings)

    def to_full_vocab(self, logits: Tensor) -> Tensor:
        """[..., D] logits of the draft vocabulary -> [..., V], -inf at all other ids."""
        full = logits.new_full((*logits.shape[:-1], self.config.vocab_size), float("-inf"))
        return full.index_copy_(-1, self.draft_ids, logits)

    def last_feature(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Return the target's last feature, that after its final norm, from the captured ones."""
        return hidden[self.config.num_layers]

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """Teacher-forced predictions at every position of the answers, one `DraftLogits` an offset."""
        raise NotImplementedError

    def scales(self) -> dict[str, Tensor]:
        """Weight name -> [in] factors of its inputs (`level_scales`): files hold the product of both."""
        return {}

    def stored(self) -> dict[str, Tensor]:
        """Weights that the head's files hold: all except those that it shares with the target."""
        state, scales = self.state_dict(), self.scales()
        return {
            name: value * scales[name] if name in scales else value
            for name, value in state.items()
            if self.owns_head or name != "lm_head.weight"
        }

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights that `stored` returned.

        Raises:
            CrossdraftError: a weight is missing, unknown, or of another shape.
        """
        own = self.stored()
        wrong = sorted(own.keys() ^ weights.keys()) or [
            name for name, value in own.items() if value.shape != weights[name].shape
        ]
        if wrong:
            raise CrossdraftError(
                f"The weights do not fit a {type(self).__name__} of this configuration: '{wrong[0]}' is missing, left "
                f"over or of another shape ({len(wrong)} such)."
            )
        self.load_state_dict(dict(weights), strict=False)
        with torch.no_grad():
            for name, scale in self.scales().items():
                self.get_parameter(name).div_(scale)


def shifted(values: Tensor, count: int) -> Tensor:
    """Shift values [B, T, ...] by `count` positions to the left along T; zeros fill the right.

    >>> shifted(torch.tensor([[1, 2, 3]]), 1)
    tensor([[2, 3, 0]])
    """
    gap = values.new_zeros(values.shape[0], min(count, values.shape[1]), *values.shape[2:])
    return torch.cat((values[:, count:], gap), 1)
