"""A Llama decoder run over packed branches, from the modules of an unmodified `transformers` model.

Why not the model's own forward with a block mask: the dense mask over prefix and all branches costs the
product of their lengths, and CPU flash attention is slow backwards. Here the prefix attends to itself, every
branch attends to prefix and self, and all scores are plain matrix products. `tests/train/reference/test_packed.py`
holds this equal to the model's forward on each unpacked row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaModel


@dataclass(frozen=True, slots=True)
class Prefix:
    """What branches need of a prefix that has been read."""

    keys: tuple[Tensor, ...]
    """One [clips, heads, P, head_dim] a layer, rotated."""
    values: tuple[Tensor, ...]
    hidden: Tensor
    """[clips, P, d], the stream that enters the last layer (nothing beyond it is ever needed)."""

    @property
    def length(self) -> int:
        """P, the number of prefix positions."""
        return self.keys[0].shape[2]


def read_prefix(llama: LlamaModel, embeds: Tensor) -> Prefix:
    """Run the prefix [clips, P, d] causally, positions 0…P-1; the last layer only gives keys and values."""
    length = embeds.shape[1]
    cos, sin = _rotations(llama, torch.arange(length, device=embeds.device)[None])
    causal = causal_bias(length, embeds.device)
    stream, keys, values = embeds, [], []
    last = len(llama.layers) - 1
    for index, layer in enumerate(llama.layers):
        normed = _norm(layer.input_layernorm, stream)
        attention = layer.self_attn
        key = _rotate(_heads(attention.k_proj(normed), attention.head_dim), cos, sin)
        value = _heads(attention.v_proj(normed), attention.head_dim)
        keys.append(key)
        values.append(value)
        if index == last:
            break
        query = _rotate(_heads(attention.q_proj(normed), attention.head_dim), cos, sin)
        stream = _finish(layer, stream, _attend(query, key, value, causal))
    return Prefix(tuple(keys), tuple(values), stream)


def run_branches(llama: LlamaModel, prefix: Prefix, embeds: Tensor) -> Tensor:
    """Hidden states [rows, length, d] after the final norm of branches [rows, length, d] behind `prefix`.

    Rows are clip-major; every branch starts at position P.
    """
    length = embeds.shape[1]
    positions = prefix.length + torch.arange(length, device=embeds.device)
    cos, sin = _rotations(llama, positions[None])
    causal = causal_bias(length, embeds.device)
    stream = embeds
    for index, layer in enumerate(llama.layers):
        query, key, value = _project(layer, stream, cos, sin)
        mixed = attend_behind(query, prefix.keys[index], prefix.values[index], key, value, causal)
        stream = _finish(layer, stream, mixed)
    return _norm(llama.norm, stream)


class BranchCache:
    """Keys and values of branches while they are decoded: rows of their own lengths, written in place."""

    def __init__(self, prefix: Prefix, rows: int, capacity: int) -> None:
        """Reserve `capacity` positions behind the prefix for each of `rows` rows."""
        _, heads, _, width = prefix.keys[0].shape
        shape = (rows, heads, capacity, width)
        self.prefix = prefix
        self.rows = rows
        self.capacity = capacity
        self.keys = [torch.zeros(shape, dtype=key.dtype) for key in prefix.keys]
        self.values = [torch.zeros(shape, dtype=key.dtype) for key in prefix.keys]

    def narrow(self, rows: Tensor) -> None:
        """Keep `rows` only, each from now on with a prefix of its own."""
        clips = rows // (self.rows // self.prefix.keys[0].shape[0])
        self.prefix = Prefix(
            tuple(key[clips] for key in self.prefix.keys),
            tuple(value[clips] for value in self.prefix.values),
            self.prefix.hidden[clips],
        )
        self.keys = [key[rows] for key in self.keys]
        self.values = [value[rows] for value in self.values]
        self.rows = len(rows)


def step_branches(llama: LlamaModel, cache: BranchCache, embeds: Tensor, start: Tensor) -> Tensor:
    """Run `embeds` [rows, m, d] at branch positions `start[row]`…`start[row]+m-1`; return hidden [rows, m, d].

    Whatever the cache held at those positions and behind is overwritten or unseen: a rejected token is undone
    by starting again in front of it.
    """
    rows, width, _ = embeds.shape
    columns = start[:, None] + torch.arange(width)
    cos, sin = _rotations(llama, cache.prefix.length + columns)
    visible = torch.arange(cache.capacity)[None, None] <= columns[..., None]
    bias = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))[:, None]
    row_index = torch.arange(rows)[:, None]
    stream = embeds
    for index, layer in enumerate(llama.layers):
        query, key, value = _project(layer, stream, cos, sin)
        keys, values = cache.keys[index], cache.values[index]
        keys[row_index, :, columns] = key.transpose(1, 2)
        values[row_index, :, columns] = value.transpose(1, 2)
        mixed = attend_behind(query, cache.prefix.keys[index], cache.prefix.values[index], keys, values, bias)
        stream = _finish(layer, stream, mixed)
    return _norm(llama.norm, stream)


def attend_behind(
    query: Tensor, prefix_key: Tensor, prefix_value: Tensor, key: Tensor, value: Tensor, bias: Tensor
) -> Tensor:
    """Attention of rows [R, H, m, D] over their clip's prefix [C, H, P, D] and their own [R, H, S, D].

    `bias` (broadcast to [R, H, m, S]) hides own positions; the prefix is always visible. Rows of one clip are
    folded into one query block, so the prefix is never copied.
    """
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
        return mixed.transpose(1, 2).reshape(rows, heads, width, dim)


def causal_bias(length: int, device: torch.device | None = None) -> Tensor:
    """0 where row may see column, -inf elsewhere; [length, length]."""
    return torch.full((length, length), float("-inf"), device=device).triu_(1)


def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    with torch.autocast(query.device.type, enabled=False):
        scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2)) + bias.to(query.dtype)
        return torch.matmul(scores.softmax(-1), value)


def _project(layer: nn.Module, stream: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    normed = _norm(layer.input_layernorm, stream)
    attention = layer.self_attn
    query = _rotate(_heads(attention.q_proj(normed), attention.head_dim), cos, sin)
    key = _rotate(_heads(attention.k_proj(normed), attention.head_dim), cos, sin)
    return query, key, _heads(attention.v_proj(normed), attention.head_dim)


def _finish(layer: nn.Module, stream: Tensor, mixed: Tensor) -> Tensor:
    """Output projection, residual, MLP, residual."""
    stream = stream + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
    return stream + layer.mlp(_norm(layer.post_attention_layernorm, stream))


def _heads(flat: Tensor, dim: int) -> Tensor:
    """[rows, n, heads*dim] -> [rows, heads, n, dim]."""
    return flat.unflatten(-1, (-1, dim)).transpose(1, 2)


def _norm(module: nn.Module, stream: Tensor) -> Tensor:
    return F.rms_norm(stream, (stream.shape[-1],), module.weight, module.variance_epsilon)


def _rotations(llama: LlamaModel, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [rows, 1, n, head_dim] of float positions, full precision."""
    cos, sin = llama.rotary_emb(torch.zeros((), device=positions.device), positions)
    return cos[:, None], sin[:, None]


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), -1)
    return heads * cos.to(heads.dtype) + turned * sin.to(heads.dtype)
