"""Which layer of a target decides most sharply where to look: DREAM's choice of a layer to learn from (Hu et al. 2025).

The entropy of an attention row, −Σ p log p over what a place attends to, averaged over heads and places. Recomputed
from captured hidden states by the target's own projections: the target need not run again, nor with eager attention.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.layers import split_heads
from crossdraft.heads.networks.train_batch import TrainBatch


def choose_layer(model: PreTrainedModel, batches: Iterable[TrainBatch]) -> int:
    """The hidden state that enters the layer with the least mean entropy, of those in the middle that lessons hold.

    The authors choose among the first 40 % of the layers; a shallow target has none to spare, so here it is all between
    the embeddings and the last feature. Of equals the lowest.

    Args:
        model: the target, a decoder built like Llama's with plain rotary positions.
        lessons: with `hidden` of the layers to choose from, and `visual` likewise if attention to the visual part is to
            count; without it only the text is looked at.

    Raises:
        CrossdraftError: the lessons hold no layer in the middle, or the target is built otherwise.
    """
    found = entropies(model, batches)
    return min(found, key=lambda layer: (found[layer], layer))


@torch.inference_mode()
def entropies(model: PreTrainedModel, batches: Iterable[TrainBatch]) -> dict[int, float]:
    """Mean entropy, in nats, of the attention in each layer 1 … L - 1 whose entering hidden states the lessons hold.

    Over the places where the target says the answer. Arguments and errors as `choose_layer`.
    """
    text: Any = getattr(model.base_model, "language_model", model.base_model)
    attention = getattr(text.layers[0], "self_attn", None)
    if not hasattr(attention, "q_proj") or hasattr(attention, "q_norm") or hasattr(model.base_model, "get_rope_index"):
        raise CrossdraftError(
            f"The attention of {type(model).__name__} is not built like Llama's, so its entropy cannot be recomputed; "
            "set middle_layer by hand."
        )
    sums: dict[int, float] = {}
    places = 0
    for batch in batches:
        asked = batch.loss_mask(0)
        places += int(asked.sum())
        for layer in range(1, len(text.layers)):
            if layer in batch.hidden:
                rows = _whole(batch.hidden, batch.visual, layer)
                each = _entropy(text, layer, rows, asked.shape[1])
                sums[layer] = sums.get(layer, 0.0) + float(each[asked].double().sum())
    if not sums or not places:
        raise CrossdraftError(
            f"No layer between 1 and {len(text.layers) - 1} was captured of any answer; capture some to choose from."
        )
    return {layer: total / places for layer, total in sums.items()}


def _whole(hidden: Mapping[int, Tensor], visual: Mapping[int, Tensor], layer: int) -> Tensor:
    """[B, N + T, H]: the visual piece, where it was captured, and the text."""
    return torch.cat((visual[layer], hidden[layer]), 1) if layer in visual else hidden[layer]


def _entropy(text: Any, layer: int, rows: Tensor, last: int) -> Tensor:
    """[B, last] entropies at the last places of [B, n, H], the mean over heads."""
    block = text.layers[layer]
    attention, size = block.self_attn, block.self_attn.head_dim
    rows = rows.to(block.input_layernorm.weight.dtype)
    normed = block.input_layernorm(rows)
    cos, sin = text.rotary_emb(rows, torch.arange(rows.shape[1], device=rows.device)[None])
    query, key = (_turned(split_heads(p(normed), size), cos, sin) for p in (attention.q_proj, attention.k_proj))
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = (query[:, :, -last:] @ key.transpose(-1, -2)).float() * attention.scaling
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=rows.device).triu_(rows.shape[1] - last + 1)
    law = scores.masked_fill(ahead, float("-inf")).softmax(-1)
    return torch.special.entr(law).sum(-1).mean(1)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions as Llama applies them; `cos` and `sin` are [1, n, d]."""
    first, second = heads.chunk(2, -1)
    return heads * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]
