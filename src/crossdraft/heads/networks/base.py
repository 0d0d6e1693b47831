"""What all heads share: whose words they draft, what they borrow of the target, and how they answer a lesson."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.target_kv import TargetKV
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The part of every head's `config.json` that says which target it belongs to.

    Args:
        hidden_size: H, of the target.
        vocab_size: V, of the target.
        num_layers: L, of the target: its feature behind the final norm is number L.
        draft_ids: [D] ids that the head may draft, rising. Answers need few of a target's ids, and a short head is a
            fast one (FR-Spec: Zhao et al. 2025); what it cannot draft, the target still says.

    Raises:
        CrossdraftError: ids that are not rising, or outside the vocabulary.
    """

    hidden_size: int
    vocab_size: int
    num_layers: int
    draft_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        ids = self.draft_ids
        rising = all(a < b for a, b in pairwise(ids))
        if not ids or not rising or ids[0] < 0 or ids[-1] >= self.vocab_size:
            raise CrossdraftError(
                f"A head's draft_ids must rise from 0 or more to less than {self.vocab_size}, each once."
            )


@dataclass(frozen=True)
class SharedWeights:
    """What heads borrow of the target instead of storing it: token embeddings and output rows, [V, H] each.

    And what makes the keys and values of its last layer, if that is built like Llama's.
    """

    embeddings: Tensor
    head: Tensor
    target_kv: TargetKV | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "SharedWeights":
        """Those of a `transformers` model; views, not copies where its layers are not packed."""
        embeddings, head = (cast("Any", model.get_input_embeddings()), cast("Any", model.get_output_embeddings()))
        return cls(embeddings.weight.detach(), head.weight.detach(), TargetKV.of(model))


class Head(nn.Module):
    """A network that guesses what the target says next.

    `lm_head` [D, H] maps its outputs to logits over the draft vocabulary: rows of its own, or (`owns_head` false) the
    target's, which are neither trained nor stored.

    Args:
        config: see the network's own.
        tables: the target's.

    Raises:
        CrossdraftError: the target has other sizes than the config.
    """

    owns_head = True
    extras: tuple[str, ...] = ()  # losses of its own, which `extra_losses` gives
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
        self.register_buffer("embeddings", shared.embeddings, persistent=False)  # of the head's own dtype
        self.lm_head = nn.Linear(config.hidden_size, len(config.draft_ids), bias=False)
        with torch.no_grad():  # the target's rows are where an own head begins
            self.lm_head.weight.copy_(shared.head[self.draft_ids.to(shared.head.device)])
        self.lm_head.requires_grad_(self.owns_head)

    @property
    def reads(self) -> tuple[int, ...]:
        """Which of the target's hidden states it reads at every place of the text."""
        return (self.config.num_layers,)

    @property
    def visual_reads(self) -> tuple[int, ...]:
        """Which it reads at the prompt's visual piece."""
        return ()

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] ids -> [..., H] the target's embeddings."""
        return F.embedding(tokens, self.embeddings)

    def to_full_vocab(self, few: Tensor) -> Tensor:
        """[..., D] logits of the draft vocabulary -> [..., V], -inf at all other words."""
        every = few.new_full((*few.shape[:-1], self.config.vocab_size), float("-inf"))
        return every.index_copy_(-1, self.draft_ids, few)

    def last(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Of captured features the target's last."""
        return hidden[self.config.num_layers]

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        """What the head would draft at every place of the answers, teacher-forced."""
        raise NotImplementedError

    def extra_losses(self, batch: TrainBatch, predictions: Sequence[DraftLogits]) -> dict[str, Tensor]:
        """Further losses by name, one number each, that a recipe may weigh."""
        return {}

    def scales(self) -> dict[str, Tensor]:
        """By weight, what each of its inputs [in] is multiplied by beforehand: files hold the product of both."""
        return {}

    def stored(self) -> dict[str, Tensor]:
        """The weights that are the head's own."""
        state, scales = self.state_dict(), self.scales()
        return {
            name: value * scales[name] if name in scales else value
            for name, value in state.items()
            if self.owns_head or name != "lm_head.weight"
        }

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights that `stored` gave.

        Raises:
            CrossdraftError: one is missing, left over, or of another shape.
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
    """[B, T, ...] moved `count` places to the left along T; zeros come in from the right.

    >>> shifted(torch.tensor([[1, 2, 3]]), 1)
    tensor([[2, 3, 0]])
    """
    gap = values.new_zeros(values.shape[0], min(count, values.shape[1]), *values.shape[2:])
    return torch.cat((values[:, count:], gap), 1)


def target_to_draft(draft_ids: Sequence[int] | Tensor, vocab_size: int) -> Tensor:
    """[V] place of each id among the draft ids [D], -1 where it is none of them.

    >>> target_to_draft((3, 1), 4)
    tensor([-1,  1, -1,  0])
    """
    ids = torch.as_tensor(draft_ids)
    places = torch.full((vocab_size,), -1, device=ids.device)
    places[ids] = torch.arange(len(ids), device=ids.device)
    return places
