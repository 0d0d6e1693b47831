"""A Llama decoder over packed branches: its forward for training, and greedy decoding of many rows at once.

It runs the modules of an unmodified `transformers` model. Its own forward with a block mask is not used: a dense
mask over prefix and all branches costs the product of their lengths, and CPU flash attention is slow backwards. Here
the prefix attends to itself, every branch attends to prefix and self, and all scores are plain matrix products.
`tests/train/reference/test_packed.py` holds this equal to the model's forward on each unpacked row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

SEARCH_WINDOW = 12
"""Number of next draft tokens that a row searches for the token that the model chose instead."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """State of a prefix that has been read, for the branches after it."""

    keys: tuple[Tensor, ...]
    """One [clips, key heads, P, head_dim] a layer, rotated."""
    values: tuple[Tensor, ...]
    hidden: Tensor
    """[clips, P, d], the stream that enters the last layer (nothing beyond it is ever needed)."""
    end: int
    """Position after the prefix, where branches start."""

    def of_clips(self, clips: Tensor) -> "Prefix":
        """Select the prefixes of these clips."""
        keys, values = (tuple(part[clips] for part in parts) for parts in (self.keys, self.values))
        return Prefix(keys, values, self.hidden[clips], self.end)


def read_prefix(llama: LlamaModel, embeds: Tensor, positions: Tensor | None = None, end: int | None = None) -> Prefix:
    """Run the prefix [clips, P, d] causally; of the last layer only keys and values are computed.

    Args:
        positions: [P], 0…P-1 by default.
        end: the position after it, P by default.
    """
    length = embeds.shape[1]
    if positions is None:
        positions = torch.arange(length, device=embeds.device)
    cos, sin = _rotations(llama, positions[None])
    causal = _causal_bias(length, embeds.device)
    stream, keys, values = embeds, [], []
    layers = _layers(llama)
    for index, layer in enumerate(layers):
        query, key, value = _project(layer, stream, cos, sin)
        keys.append(key)
        values.append(value)
        if index < len(layers) - 1:
            stream = _finish(layer, stream, _joined(_attend(query, key, value, causal)))
    return Prefix(tuple(keys), tuple(values), stream, length if end is None else end)


def run_branches(llama: LlamaModel, prefix: Prefix, embeds: Tensor) -> Tensor:
    """Run branches [rows, length, d] after `prefix`; return hidden states [rows, length, d] after the final norm.

    Rows are clip-major; every branch starts at the position after the prefix.
    """
    return branch_states(llama, prefix, embeds)[-1]


def branch_states(llama: LlamaModel, prefix: Prefix, embeds: Tensor) -> list[Tensor]:
    """Return all hidden states of branches: embeddings, outputs of each layer but the last, states after the norm."""
    length = embeds.shape[1]
    causal = _causal_bias(length, embeds.device)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_behind(query, prefix.keys[layer], prefix.values[layer], key, value, causal)

    positions = prefix.end + torch.arange(length, device=embeds.device)
    return _forward(llama, embeds, positions[None], attend)


@dataclass(frozen=True, slots=True)
class JoinedInput:
    """Prefixes and their branches as one stream of positions, [clips · P + rows · length, d].

    Args:
        clips, rows: shapes (clips, P) and (rows, length).
        cos, sin: rotary values [1, 1, P + length, head_dim] of their positions.
        wide, narrow: masks [P, P] and [length, length] that hide later positions.
    """

    clips: tuple[int, int]
    rows: tuple[int, int]
    cos: Tensor
    sin: Tensor
    wide: Tensor
    narrow: Tensor

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of positions of all prefixes, and of all branches."""
        return self.clips[0] * self.clips[1], self.rows[0] * self.rows[1]


class JoinedLayer(nn.Module):
    """A decoder layer over a `JoinedInput`, as a module, because FSDP gathers weights when a module is called."""

    def __init__(self, layer: LlamaDecoderLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, stream: Tensor, joined: JoinedInput, last: bool) -> Tensor:
        """Return the stream after the layer; after the last layer, that of the branches alone."""
        layer, clips, rows, sizes = self.layer, joined.clips, joined.rows, joined.sizes
        heads = [part.split(sizes) for part in _heads(layer, stream)]
        query, key, value = (part.unflatten(0, clips).transpose(1, 2) for part, _ in heads)
        own_query, own_key, own_value = (part.unflatten(0, rows).transpose(1, 2) for _, part in heads)
        cos, sin = joined.cos, joined.sin
        query, key = (_rotate(part, cos[:, :, : clips[1]], sin[:, :, : clips[1]]) for part in (query, key))
        own_query, own_key = (
            _rotate(part, cos[:, :, clips[1] :], sin[:, :, clips[1] :]) for part in (own_query, own_key)
        )
        mixed = [attend_behind(own_query, key, value, own_key, own_value, joined.narrow)]
        if last:  # the prefix's output is not needed
            stream = stream[sizes[0] :]
        else:
            mixed.insert(0, _attend(query, key, value, joined.wide))
        return _finish(layer, stream, torch.cat([_joined(part).flatten(0, 1) for part in mixed]))


def joined_layers(llama: LlamaModel) -> list[JoinedLayer]:
    """Wrap a decoder's layers for `read_together`."""
    return [JoinedLayer(layer) for layer in _layers(llama)]


def read_together(
    llama: LlamaModel, prefix: Tensor, branches: Tensor, layers: Sequence[JoinedLayer] | None = None
) -> list[Tensor]:
    """Compute `branch_states` of a prefix [clips, P, d] and its branches [rows, length, d] in one pass.

    Every layer's products are computed once, over the positions of both, so that a packed weight is unpacked once.

    Args:
        layers: the decoder's layers as `joined_layers` wraps them; `None` wraps them here.
    """
    clips, rows = ((part.shape[0], part.shape[1]) for part in (prefix, branches))
    cos, sin = _rotations(llama, torch.arange(clips[1] + rows[1], device=prefix.device)[None])
    wide, narrow = (_causal_bias(part[1], prefix.device) for part in (clips, rows))
    joined = JoinedInput(clips, rows, cos, sin, wide, narrow)
    stream, states = torch.cat((prefix.flatten(0, 1), branches.flatten(0, 1))), [branches]
    layers = layers or joined_layers(llama)
    for layer in layers:
        stream = layer(stream, joined, layer is layers[-1])
        states.append(stream[-joined.sizes[1] :].unflatten(0, rows))
    states[-1] = _norm(llama.norm, states[-1])
    return states


class BranchCache:
    """Keys and values of branches while they are decoded: rows of their own lengths, written in place."""

    def __init__(self, prefix: Prefix, rows: int, capacity: int) -> None:
        """Reserve `capacity` positions after the prefix for each of `rows` rows."""
        _, heads, _, width = prefix.keys[0].shape
        shape = (rows, heads, capacity, width)
        self.prefix = prefix
        self.rows = rows
        self.capacity = capacity
        self.keys = [torch.zeros(shape, dtype=key.dtype) for key in prefix.keys]
        self.values = [torch.zeros(shape, dtype=key.dtype) for key in prefix.keys]

    def narrow(self, rows: Tensor) -> None:
        """Keep only `rows`, each with a copy of its prefix from then on."""
        self.prefix = self.prefix.of_clips(rows // (self.rows // self.prefix.keys[0].shape[0]))
        self.keys = [key[rows] for key in self.keys]
        self.values = [value[rows] for value in self.values]
        self.rows = len(rows)


def step_branches(llama: LlamaModel, cache: BranchCache, embeds: Tensor, start: Tensor) -> Tensor:
    """Run `embeds` [rows, m, d] at branch positions `start[row]`…`start[row]+m-1`; return hidden [rows, m, d].

    Earlier cache entries at those positions are overwritten and later ones are not seen: a rejected token is undone
    by starting again before it.
    """
    rows, width, _ = embeds.shape
    columns = start[:, None] + torch.arange(width)
    visible = torch.arange(cache.capacity)[None, None] <= columns[..., None]
    bias = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))[:, None]
    row_index, prefix = torch.arange(rows)[:, None], cache.prefix

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = cache.keys[layer], cache.values[layer]
        keys[row_index, :, columns] = key.transpose(1, 2)
        values[row_index, :, columns] = value.transpose(1, 2)
        return attend_behind(query, prefix.keys[layer], prefix.values[layer], keys, values, bias)

    return _forward(llama, embeds, prefix.end + columns, attend)[-1]


def _forward(
    llama: LlamaModel, stream: Tensor, positions: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]
) -> list[Tensor]:
    """Run every layer with attention by `attend(layer, query, key, value)`; return all hidden states."""
    cos, sin = _rotations(llama, positions)
    states = [stream]
    for index, layer in enumerate(_layers(llama)):
        mixed = attend(index, *_project(layer, states[-1], cos, sin))
        states.append(_finish(layer, states[-1], _joined(mixed)))
    states[-1] = _norm(llama.norm, states[-1])
    return states


def attend_behind(
    query: Tensor, prefix_key: Tensor, prefix_value: Tensor, key: Tensor, value: Tensor, bias: Tensor
) -> Tensor:
    """Compute attention of rows [R, H, m, D] over their clip's prefix [C, K, P, D] and their own [R, K, S, D].

    `bias` ([m, S] or [R, 1, m, S]) hides own positions; the prefix is always visible. Rows of one clip, and query heads
    of one key head (`_grouped`), are folded into one query block, so that no key is copied.
    """
    query, bias, shape = *_grouped(query, key, bias), query.shape
    rows, heads, width, dim = query.shape
    clips, _, length, _ = prefix_key.shape
    each = rows // clips
    with torch.autocast(query.device.type, enabled=False):
        query = query * dim**-0.5
        folded = query.view(clips, each, heads, width, dim).transpose(1, 2).reshape(clips, heads, each * width, dim)
        before = torch.matmul(folded, prefix_key.transpose(-1, -2)).view(clips, heads, each, width, length)
        own = torch.matmul(query, key.transpose(-1, -2)) + bias.to(query.dtype)
        own = own.view(clips, each, heads, width, -1).transpose(1, 2)
        weights = torch.cat((before, own), -1).softmax(-1)
        mixed = torch.matmul(weights[..., :length].reshape(clips, heads, each * width, length), prefix_value)
        mixed = mixed.view(clips, heads, each, width, dim)
        mixed = mixed + torch.matmul(weights[..., length:], value.view(clips, each, heads, -1, dim).transpose(1, 2))
        return mixed.transpose(1, 2).reshape(shape)


def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Compute attention of [R, H, m, D] over [R, K, S, D]; bias as in `attend_behind`."""
    query, bias, shape = *_grouped(query, key, bias), query.shape
    with torch.autocast(query.device.type, enabled=False):
        scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2)) + bias.to(query.dtype)
        return torch.matmul(scores.softmax(-1), value).reshape(shape)


def _grouped(query: Tensor, key: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Group queries (Ainslie et al. 2023): [R, H, m, D] as [R, K, G·m, D], with their bias.

    Query head h reads key head h // G, where G = H / K.
    """
    heads = key.shape[1]
    group = query.shape[1] // heads
    if group == 1:
        return query, bias
    return query.unflatten(1, (heads, group)).flatten(2, 3), torch.cat([bias] * group, -2)


def _causal_bias(length: int, device: torch.device) -> Tensor:
    """Attention bias [length, length]: 0 where a row may see a column, -inf elsewhere."""
    return torch.full((length, length), float("-inf"), device=device).triu_(1)


def _layers(llama: LlamaModel) -> Sequence[LlamaDecoderLayer]:
    return cast("Sequence[LlamaDecoderLayer]", llama.layers)


def _project(layer: LlamaDecoderLayer, stream: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys, and values, each [rows, heads, n, head_dim]; keys and values may have fewer heads."""
    query, key, value = (heads.transpose(1, 2) for heads in _heads(layer, stream))
    return _rotate(query, cos, sin), _rotate(key, cos, sin), value


def _heads(layer: LlamaDecoderLayer, stream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [..., heads, head_dim]."""
    normed, attention = _norm(layer.input_layernorm, stream), layer.self_attn
    query, key, value = (
        linear(normed).unflatten(-1, (-1, attention.head_dim))
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return query, key, value


def _joined(mixed: Tensor) -> Tensor:
    """[rows, heads, n, head_dim] -> [rows, n, heads x head_dim]."""
    return mixed.transpose(1, 2).flatten(2)


def _finish(layer: LlamaDecoderLayer, stream: Tensor, mixed: Tensor) -> Tensor:
    """Output projection of the heads' results, residual, MLP, residual; each [..., d]."""
    stream = stream + layer.self_attn.o_proj(mixed)
    return stream + layer.mlp(_norm(layer.post_attention_layernorm, stream))


def _norm(module: LlamaRMSNorm, stream: Tensor) -> Tensor:
    return F.rms_norm(stream, (stream.shape[-1],), module.weight, module.variance_epsilon)


def _rotations(llama: LlamaModel, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [rows, 1, n, head_dim] of float positions, full precision."""
    cos, sin = llama.rotary_emb(torch.zeros((), device=positions.device), positions)
    return cos[:, None], sin[:, None]


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), -1)
    return heads * cos.to(heads.dtype) + turned * sin.to(heads.dtype)


@torch.inference_mode()
def greedy_decode(
    llama: LlamaModel,
    head: Callable[[Tensor], Tensor],
    prefix: Prefix,
    questions: Sequence[Sequence[int]],
    drafts: Sequence[Sequence[int]],
    *,
    eos_id: int,
    max_new_tokens: int,
    window: int = 6,
) -> tuple[list[list[int]], int]:
    """Decode greedily with drafts; return continuations of `questions` (with `</s>` if reached) and number of passes.

    All questions of a clip share its prefix. Each pass feeds every unfinished row its last token and the next
    `window - 1` tokens of its draft, keeps the tokens that the argmax confirms, and continues after the first other
    one. Whatever the drafts (they may be empty), the result is the model's greedy answer. Finished rows stay idle until
    they are half of the batch, then they are removed.

    Args:
        questions: token ids, clip-major.
        drafts: draft tokens of each answer; may be empty.
    """
    longest = max(len(q) for q in questions)
    cache = BranchCache(prefix, len(questions), longest + max_new_tokens + window)
    lengths = torch.tensor([len(q) for q in questions])
    padded = torch.zeros(len(questions), longest, dtype=torch.long)
    for row, question in enumerate(questions):
        padded[row, : len(question)] = torch.tensor(question)
    hidden = step_branches(llama, cache, llama.embed_tokens(padded), torch.zeros_like(lengths))
    first = head(hidden[torch.arange(len(questions)), lengths - 1]).argmax(-1).tolist()
    rows = [_Row(token, list(draft), eos_id, max_new_tokens) for token, draft in zip(first, drafts, strict=True)]
    passes, active = 1, list(range(len(rows)))
    while unfinished := [row for row in active if not rows[row].done]:
        if 2 * len(unfinished) <= len(active):
            cache.narrow(torch.tensor([active.index(row) for row in unfinished]))
            active = unfinished
        tokens = torch.tensor([rows[row].propose(window) for row in active])
        start = torch.tensor([len(questions[row]) + len(rows[row].tokens) - 1 for row in active])
        chosen: Tensor = head(step_branches(llama, cache, llama.embed_tokens(tokens), start)).argmax(-1)
        for row, inputs, choices in zip(active, tokens.tolist(), chosen.tolist(), strict=True):
            rows[row].accept(inputs, choices)
        passes += 1
    return [row.tokens for row in rows], passes


class _Row:
    """One answer being decoded: its tokens so far, and the rest of its draft."""

    def __init__(self, first: int, draft: list[int], eos_id: int, limit: int) -> None:
        self.tokens: list[int] = []
        self.draft = draft
        self.eos_id = eos_id
        self.limit = limit
        self._append(first)

    @property
    def done(self) -> bool:
        return self.tokens[-1] == self.eos_id or len(self.tokens) >= self.limit

    def propose(self, window: int) -> list[int]:
        """Return the last token, then the next tokens of its draft, padded with `</s>`."""
        draft = self.draft[: window - 1]
        return [self.tokens[-1], *draft, *[self.eos_id] * (window - 1 - len(draft))]

    def accept(self, inputs: list[int], choices: list[int]) -> None:
        """Keep the model's choices up to and including the first one that differs from the inputs."""
        for position, choice in enumerate(choices):
            if self.done:
                return
            self._append(choice)
            if position + 1 >= len(inputs) or inputs[position + 1] != choice:
                return

    def _append(self, token: int) -> None:
        """Append a token and advance the draft: past the same token if it comes soon, else by one."""
        self.tokens.append(token)
        soon = self.draft[:SEARCH_WINDOW]
        self.draft = self.draft[soon.index(token) + 1 if token in soon else 1 :]
