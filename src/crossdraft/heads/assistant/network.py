"""The network of a Gemma 4 assistant (google/gemma-4-*-assistant; transformers' `Gemma4AssistantForCausalLM`).

A few Gemma 4 layers without keys of their own: each attends to those of the target's last layer of its type that has
some. A row reads the target's embedding of a token and the feature in front of it, all at the position of the last
committed token, and its output is the feature of the row that follows:

    x = pre_projection([E(token) ; feature])    h = layers(x)    logits = lm_head(h)    feature' = post_projection(h)

With `use_ordered_embeddings` only the tokens of the likeliest clusters get logits.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from crossdraft.heads.networks.base import Head, HeadConfig

KeyValues = Mapping[str, tuple[Tensor, Tensor]]
"""Keys and values [1, heads, L, d] of each type of layer."""


class Clusters(nn.Module):
    """Output head over the tokens of the likeliest clusters.

    Args:
        hidden_size, vocab_size: sizes of the assistant.
        count: number of clusters.
        top: number of clusters whose tokens get logits.
    """

    token_ordering: Tensor

    def __init__(self, hidden_size: int, vocab_size: int, count: int, top: int) -> None:
        super().__init__()
        self.top, self.count = top, count
        self.centroids = nn.Linear(hidden_size, count, bias=False)
        self.register_buffer("token_ordering", torch.zeros(vocab_size, dtype=torch.long))

    def forward(self, states: Tensor, rows: Tensor) -> Tensor:
        """[m, H] states, [V, H] output embeddings -> [m, V] logits, -inf outside the likeliest clusters."""
        nearest = self.centroids(states).topk(self.top).indices
        tokens = self.token_ordering.view(self.count, -1)[nearest].flatten(1)
        found = (rows[tokens] @ states[..., None])[..., 0]
        return states.new_full((len(states), len(rows)), float("-inf")).scatter_(1, tokens, found)


class AssistantHead(Head):
    """A Gemma 4 assistant, as a head on its target.

    Args:
        config: sizes of the target.
        decoder: the assistant's decoder, all of whose layers borrow their keys.
        embedder: input embeddings of the target.
        kv_layers: the target's layer that keeps the keys of each type of layer.
        clusters: head over clusters; `None` = all tokens.
    """

    owns_head = False

    def __init__(
        self,
        config: HeadConfig,
        decoder: PreTrainedModel,
        embedder: nn.Module,
        kv_layers: Mapping[str, int],
        clusters: Clusters | None,
    ) -> None:
        nn.Module.__init__(self)  # the target's head is not used
        self.config = config  # pyright: ignore[reportAttributeAccessIssue]
        self.register_buffer("draft_ids", torch.tensor(config.draft_ids), persistent=False)
        table: Any = embedder.weight
        self.register_buffer("embeddings", table.detach(), persistent=False)
        self.model: Any = decoder
        sizes: Any = decoder.config
        self.kv_layers, self.window = dict(kv_layers), int(sizes.sliding_window)
        size, own = config.hidden_size, sizes.hidden_size
        self.pre_projection = nn.Linear(2 * size, own, bias=False)
        self.post_projection = nn.Linear(own, size, bias=False)
        self.masked_embedding = clusters
        self._embedder = [embedder]  # in a list: it is no part of the assistant

    def embed(self, tokens: Tensor) -> Tensor:
        return self._embedder[0](tokens)

    def step(self, tokens: Tensor, features: Tensor, shared: KeyValues, position: int) -> tuple[Tensor, Tensor]:
        """Read rows [1, m] of tokens and features [1, m, H] at one position; returns [m, V] logits and features."""
        rows = self.pre_projection(torch.cat((self.embed(tokens).to(features), features), -1))
        count, seen = tokens.shape[1], dict[str, tuple[Tensor, Tensor]]()
        for kind, (keys, values) in shared.items():
            first = max(0, keys.shape[2] - self.window - 1) if kind == "sliding_attention" else 0
            seen[kind] = keys[:, :, first:].to(rows), values[:, :, first:].to(rows)
        masks = {kind: rows.new_zeros(1, 1, count, keys.shape[2]) for kind, (keys, _) in seen.items()}
        found = self.model(
            inputs_embeds=rows,
            attention_mask=masks,
            position_ids=torch.full((1, count), position, device=rows.device),
            shared_kv_states=seen,
            logits_to_keep=torch.arange(count),  # else only the last row goes through layers without keys
            use_cache=False,
        ).last_hidden_state
        table = self.model.embed_tokens.weight
        clusters = self.masked_embedding
        logits = found[0] @ table.T if clusters is None else clusters(found[0], table)
        return logits, self.post_projection(found)
