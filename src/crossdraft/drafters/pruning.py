"""Which visual tokens a small drafter of the target's own family needs: those that the question looks at.

Verifier-guided pruning (SpecVLM: Ji et al., EMNLP 2025). The target has read clip and question; how much the question's
tokens attend to each visual token says what of the clip matters for it. Of these tokens the drafter reads a tenth:
first the few that draw most of the attention, then an even spread over the others, so that the rest of the scene is
not lost. The target's own input stays as it is.

The engine's attention kernels give no weights away, so they are computed again: from the hidden states that entered a
layer, by the layer's own projections. That is no more than one product of question and prompt per layer.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from crossdraft.engine.fast.forward import ANATOMIES
from crossdraft.engine.target import Encoded, Prompt
from crossdraft.errors import CrossdraftError

KEEP = 0.1  # of the visual tokens
MASS = 0.4  # of their attention, which the first stage covers


def decoder_of(model: PreTrainedModel) -> Any:
    """The text decoder of a vision-language model, whose attention `attention_scores` knows how to compute.

    Raises:
        CrossdraftError: it is built otherwise.
    """
    decoder: Any = getattr(model.base_model, "language_model", model.base_model)
    if type(decoder) not in ANATOMIES:
        known = " or ".join(kind.__name__ for kind in ANATOMIES)
        raise CrossdraftError(
            f"The attention of a {type(decoder).__name__} cannot be computed from its hidden states; guided pruning "
            f"needs a target whose text is read by a {known}."
        )
    return decoder


def attention_scores(decoder: Any, entering: Mapping[int, Tensor], asking: Tensor, seen: Tensor) -> Tensor:
    """How much some tokens of a prompt attend to others, as means over layers, heads and the tokens that ask.

    Args:
        decoder: of `decoder_of`.
        entering: layer -> [n, H] hidden states that enter it, `hidden_states[layer]`, of the prompt's first n tokens;
            at least one layer.
        asking: [m] places of the question's tokens.
        seen: [N] places of the visual tokens.

    Returns:
        [N] shares; together they are the share of the question's attention that goes to the clip.
    """
    total = torch.zeros(())
    for layer, states in entering.items():
        block = decoder.layers[layer]
        rows, attention = block.input_layernorm(states[None]), block.self_attn
        places = torch.arange(rows.shape[1], device=rows.device)
        query, key = (
            project(rows).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *decoder.rotary_emb(rows, places[None]))
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = query[:, :, asking] @ key.transpose(-1, -2) * attention.scaling
        law = scores.masked_fill(places > asking[:, None], float("-inf")).softmax(-1)
        total = total.to(law) + law[..., seen].mean((0, 1, 2))
    return total / len(entering)


def kept_places(scores: Tensor, keep: float = KEEP, mass: float = MASS) -> Tensor:
    """[⌈keep · N⌉] places of the tokens that stay, rising.

    First the fewest tokens that together draw `mass` of the attention to the clip, then as many as are still wanted,
    evenly spread over the others in their order.

    >>> kept_places(torch.tensor([0.1, 0.5, 0.1, 0.1, 0.1, 0.1]), keep=0.5)
    tensor([0, 1, 5])

    Args:
        scores: [N] attention to each visual token.
        keep: share of them that stays, above 0, at most 1.
        mass: share of the attention.

    Raises:
        CrossdraftError: `keep` or `mass` is no such share.
    """
    if not 0 < keep <= 1 or not 0 <= mass <= 1:
        raise CrossdraftError(
            f"Pruning keeps a share of tokens above 0 and up to 1, and of attention; got {keep}, {mass}."
        )
    wanted = -(-len(scores) * keep // 1)
    order = scores.argsort(descending=True, stable=True)
    covered = scores[order].cumsum(0)
    first = min(int((covered < mass * covered[-1:]).sum()) + 1, int(wanted)) if mass else 0
    rest = order[first:].sort().values
    evenly = torch.linspace(0, max(len(rest) - 1, 0), int(wanted) - first).round().long().to(rest.device)
    return torch.cat((order[:first], rest[evenly])).sort().values


def pruned(prompt: Prompt, encoded: Encoded, placeholders: Mapping[str, int], kept: Tensor) -> tuple[Prompt, Encoded]:
    """A prompt with few of its visual tokens, and their features.

    What is left is numbered anew, without gaps: a shorter clip, as the drafter knows them.

    Args:
        prompt: with one placeholder for every visual token.
        encoded: their features by kind, `pooler_output` [..., H] in the order of their placeholders.
        placeholders: the id of each kind.
        kept: [K] which of the visual tokens stay, counted over all kinds in the order of the prompt, rising.
    """
    ids = prompt.input_ids.cpu()
    visual = torch.isin(ids, torch.tensor(list(placeholders.values())))
    chosen = torch.zeros(int(visual.sum()), dtype=torch.bool)
    chosen[kept.cpu()] = True
    few: dict[str, object] = {}
    for kind, features in encoded.items():
        own = chosen[ids[visual] == placeholders[kind]]
        few[kind] = _of(features, own)
    stays = ~visual
    stays[visual] = chosen
    return Prompt(ids[stays], prompt.features), few


def _of(features: Any, chosen: Tensor) -> object:
    """Encoded features with some of their rows."""
    pooled = features.pooler_output
    parts = [pooled] if isinstance(pooled, Tensor) else list(pooled)
    rows = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    some = copy(features)
    some.pooler_output = rows[chosen.to(rows.device)]
    return some
