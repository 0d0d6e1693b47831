"""A text decoder's layers, run one after another without the wrappers around them.

A decode step of a small model, or of a large one on a fast GPU, spends a good part of its time in `transformers`'
wrappers: output recording, mask construction, kernel dispatch, argument checks. Passes go through these few lines
instead, with the model's own modules, in the order of `LlamaDecoderLayer.forward`: operation by operation the same
arithmetic. Decoders of another anatomy keep their own forward.

And of a prefill's first piece nobody reads the logits: there the last layer does no more than its keys and values. Of a
whole prompt only the last token is answered: there the last layer goes on with that one alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaModel, PreTrainedModel, Qwen2Model

from crossdraft.engine.cache import KVCache
from crossdraft.engine.fast.elastic import poll

ANATOMIES = (LlamaModel, Qwen2Model)  # pre-norm, rotary, gated MLP; biases and grouped heads as they come
CAUSAL_ROWS = 96  # queries of a first pass that attend at once on a CPU


@dataclass(frozen=True)
class PassPart:
    """Some rows of a pass that others share; see `FastDecoder.together`.

    Args:
        embeds: [B, n, h] what is read.
        positions: [B, n].
        mask: [B, 1, n, keys] as in a pass of its own.
        cache: its window is open.
        fill: nobody asks for an answer, nor for features of the last layer.
        real: [m] indices of the tokens among all B·n that are no padding; `None` = all.
    """

    embeds: Tensor
    positions: Tensor
    mask: Tensor | None
    cache: KVCache
    fill: bool = False
    real: Tensor | None = None

    def packed(self, states: Tensor) -> Tensor:
        """[B, n, k] -> [1, m, k], without padding."""
        flat = states.reshape(1, -1, states.shape[-1])
        return flat if self.real is None else flat.index_select(1, self.real)

    def padded(self, states: Tensor) -> Tensor:
        """[1, m, k] -> [B, n, k]."""
        shape = *self.embeds.shape[:2], states.shape[-1]
        if self.real is not None:
            states = states.new_zeros(1, shape[0] * shape[1], shape[2]).index_copy_(1, self.real, states)
        return states.reshape(shape)


class FastDecoder:
    """The decoder and head of a vision-language model; see `find_lean`.

    Args:
        text: a decoder of one of `ANATOMIES`.
        head: hidden states -> logits.
    """

    def __init__(self, text: nn.Module, head: nn.Module) -> None:
        self.text: Any = text
        self.head = head
        self.skipped = [text, *self.text.layers]
        for layer in self.text.layers:
            self.skipped += [layer.self_attn, layer.mlp, layer.input_layernorm, layer.post_attention_layernorm]
            if isinstance(layer.mlp.act_fn, nn.Module):
                self.skipped.append(layer.mlp.act_fn)  # what it says is written over

    def features_only(self) -> "FastDecoder":
        """The same decoder without a head: its logits are [B, kept, 0]."""
        return FastDecoder(self.text, _NoHead())

    @property
    def usable(self) -> bool:
        """False while somebody listens to, or changes, what a module does whose forward is skipped here."""
        return not any(m._forward_hooks or m._forward_pre_hooks for m in self.skipped)  # noqa: SLF001

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache,
        kept: int,
        embeds: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """One pass over [B, n] ids, written after the cache's window.

        Args:
            ids, positions: [B, n].
            mask: [B, 1, n, keys], true = may attend; `None` = everything up to itself.
            cache: its window is open.
            kept: how many of the last positions need logits.
            embeds: [B, n, h] what is read instead of the ids.

        Returns:
            Logits [B, kept, V], and hidden states as `output_hidden_states` counts them: embeddings, then after each
            layer, the last of them after the final norm.
        """
        states = [self.text.embed_tokens(ids) if embeds is None else embeds]
        turn = self._turn(states[0], positions)
        stores = cast("list[Any]", cache.layers)
        bias = mask_bias(states[0], mask)
        for layer, store in zip(self.text.layers, stores, strict=True):
            states.append(self._layer(layer, store, states[-1], turn, bias))
        states[-1] = rms_norm(self.text.norm, states[-1])
        return self.head(states[-1][:, -kept:]), states

    def fill(
        self, embeds: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache, *, whole: bool = False
    ) -> list[Tensor]:
        """Write [B, n, h] embeddings into a row's window; each sees those before it, and none is answered.

        `mask` as in a pass; `None` if the row is empty. Returns the hidden states, those of the last layer only if
        they are wanted: `whole`.
        """
        turn, bias = self._turn(embeds, positions), mask_bias(embeds, mask)
        states = self._all_but_last(embeds, turn, bias, cache)
        last, store = self.text.layers[-1], cast("Any", cache.layers[-1])
        if whole:
            return [*states, rms_norm(self.text.norm, self._layer(last, store, states[-1], turn, bias))]
        self._remember(last.self_attn, store, rms_norm(last.input_layernorm, states[-1]), turn)
        return states

    def answer(self, embeds: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache) -> Tensor:
        """As `fill`, and the logits [B, 1, V] after the last of them."""
        turn, bias = self._turn(embeds, positions), mask_bias(embeds, mask)
        stream = self._all_but_last(embeds, turn, bias, cache)[-1]
        last, store = self.text.layers[-1], cast("Any", cache.layers[-1])
        normed = rms_norm(last.input_layernorm, stream)
        kept = self._remember(last.self_attn, store, normed, turn)
        turn = turn[0][:, :, -1:], turn[1][:, :, -1:]
        bias = None if bias is None else bias[:, :, -1:]
        stream = self._rest(last, stream[:, -1:], last.self_attn.q_proj(normed)[:, -1:], kept, turn, bias)
        return self.head(rms_norm(self.text.norm, stream))

    def _all_but_last(
        self, embeds: Tensor, turn: tuple[Tensor, Tensor], bias: Tensor | None, cache: KVCache
    ) -> list[Tensor]:
        """The embeddings, and what each layer but the last makes of them."""
        states = [embeds]
        stores = cast("list[Any]", cache.layers)[:-1]
        for layer, store in zip(self.text.layers[:-1], stores, strict=True):
            states.append(self._layer(layer, store, states[-1], turn, bias))
        return states

    def together(self, parts: Sequence[PassPart]) -> list[list[Tensor]]:
        """Several passes in one, each over rows of its own cache: they share the layers' matrix products.

        Padding takes part in attention alone.

        Returns:
            of each part its hidden states [1, m, h], as `fill` returns them where nobody asks for more, without logits.
        """
        turns = [self._turn(part.embeds, part.positions) for part in parts]
        biases = [mask_bias(part.embeds, part.mask) for part in parts]
        states = [[part.packed(part.embeds)] for part in parts]
        layers = list(self.text.layers)
        for number, layer in enumerate(layers):
            stores = [cast("list[Any]", part.cache.layers)[number] for part in parts]
            active = list(range(len(parts)))
            if layer is layers[-1]:
                for one in [one for one in active if parts[one].fill]:
                    normed = rms_norm(layer.input_layernorm, parts[one].padded(states[one][-1]))
                    self._remember(layer.self_attn, stores[one], normed, turns[one])
                    active.remove(one)
            streams = [states[one][-1] for one in active]
            joint = [(parts[one], stores[one], turns[one], biases[one]) for one in active]
            for one, stream in zip(active, self._layer_together(layer, streams, joint), strict=True):
                states[one].append(stream)
        for part, own in zip(parts, states, strict=True):
            if not part.fill:
                own[-1] = rms_norm(self.text.norm, own[-1])
        return states

    def _layer_together(
        self,
        layer: Any,
        streams: Sequence[Tensor],
        parts: Sequence[tuple[PassPart, Any, tuple[Tensor, Tensor], Tensor | None]],
    ) -> list[Tensor]:
        """One layer of several parts, [1, m, h] each; with its store, what its queries are rotated by, and its mask."""
        attention, mlp = layer.self_attn, layer.mlp
        sizes = [stream.shape[1] for stream in streams]
        poll()
        flat = torch.cat(list(streams), 1)
        normed = rms_norm(layer.input_layernorm, flat)
        made = [project(normed).split(sizes, 1) for project in (attention.q_proj, attention.k_proj, attention.v_proj)]
        mixed: list[Tensor] = []
        for (part, store, turn, bias), *projected in zip(parts, *made, strict=True):
            query, key, value = (split_heads(part.padded(one), attention.head_dim) for one in projected)
            keys, values = store.update(self._key(attention, key, turn), value)
            first = bias is None and query.shape[2] > 1
            query = self._query(attention, query, turn)
            found = attend(query, keys, values, bias, causal=first, scale=attention.scaling)
            mixed.append(part.packed(found.transpose(1, 2).flatten(2)))
        poll()
        flat = flat + attention.o_proj(torch.cat(mixed, 1))
        normed = rms_norm(layer.post_attention_layernorm, flat)
        inner = mlp.act_fn(mlp.gate_proj(normed)).mul_(mlp.up_proj(normed))
        poll()
        flat = flat + mlp.down_proj(inner)
        return list(flat.split(sizes, 1))

    def _turn(self, stream: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the rotary factors of queries and keys, cosine and signed sine."""
        cos, sin = self.text.rotary_emb(stream, positions)
        return cos.unsqueeze(1), signed_sin(sin.unsqueeze(1))

    def _layer(
        self, layer: Any, store: Any, stream: Tensor, turn: tuple[Tensor, Tensor], bias: Tensor | None
    ) -> Tensor:
        poll()
        normed = rms_norm(layer.input_layernorm, stream)
        projected = layer.self_attn.q_proj(normed)
        return self._rest(layer, stream, projected, self._remember(layer.self_attn, store, normed, turn), turn, bias)

    def _rest(
        self,
        layer: Any,
        stream: Tensor,
        projected: Tensor,
        kept: tuple[Tensor, Tensor],
        turn: tuple[Tensor, Tensor],
        bias: Tensor | None,
    ) -> Tensor:
        """A layer from its projected queries on; keys and values are `kept` of all tokens so far."""
        attention = layer.self_attn
        query = self._query(attention, split_heads(projected, attention.head_dim), turn)
        first = bias is None and stream.shape[1] > 1  # only a first pass over several tokens goes without a mask
        mixed = attend(query, *kept, bias, causal=first, scale=attention.scaling)
        return self._after_attention(layer, stream, mixed)

    def _after_attention(self, layer: Any, stream: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output, of its input [B, n, h] and what its heads mixed [B, H, n, d]."""
        attention, mlp = layer.self_attn, layer.mlp
        poll()
        stream = stream + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        normed = rms_norm(layer.post_attention_layernorm, stream)
        inner = mlp.act_fn(mlp.gate_proj(normed)).mul_(mlp.up_proj(normed))
        poll()
        return stream + mlp.down_proj(inner)

    def _remember(
        self, attention: Any, store: Any, normed: Tensor, turn: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values after those that are there; returns all of them."""
        key = self._key(attention, split_heads(attention.k_proj(normed), attention.head_dim), turn)
        return store.update(key, split_heads(attention.v_proj(normed), attention.head_dim))

    def _query(self, attention: Any, query: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """[B, H, n, d] what a layer's scores are made of, beside `_key`."""
        return rotate(query, *turn)

    def _key(self, attention: Any, key: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """[B, G, n, d] what is kept of a token's key."""
        return rotate(key, *turn)


def find_lean(model: PreTrainedModel) -> FastDecoder | None:
    """The lean path of a model, if its decoder has a known anatomy and its weights stay where they are."""
    base = model.base_model
    text: Any = getattr(base, "language_model", getattr(base, "text_model", base))
    head = model.get_output_embeddings()
    if type(text) not in ANATOMIES or head is None or text.config._attn_implementation != "sdpa":
        return None
    moved = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate's doing
    return None if moved else FastDecoder(text, head)


class _NoHead(nn.Module):
    """A head without words."""

    def forward(self, states: Tensor) -> Tensor:
        return states[..., :0]


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    *,
    causal: bool,
    scale: float,
    masked_groups: bool | None = None,
) -> Tensor:
    """Attention of [B, H, n, d] queries to [B, G, keys, d] keys and values; each of the G serves H / G heads.

    Args:
        bias: [B, 1, n, keys] added to the scores, or `None`.
        causal: without a bias, each query sees the keys up to its own.
        scale: of the scores.
        masked_groups: whether the kernels take a bias and grouped heads at once; `None` = on a CPU alone. CUDA's fused
            ones do not, and the plain one that is left writes all scores to memory. So, as in `transformers`, a single
            query's heads are put side by side as if they were queries, and else the keys and values are repeated.

    Returns:
        [B, H, n, d].
    """
    if causal and query.device.type == "cpu" and query.shape[2] > CAUSAL_ROWS:
        return _causal_in_parts(query, keys, values, scale)
    groups = query.shape[1] // keys.shape[1]
    if masked_groups is None:
        masked_groups = query.device.type == "cpu"
    if groups == 1 or bias is None or masked_groups:
        return F.scaled_dot_product_attention(
            query, keys, values, bias, is_causal=causal, scale=scale, enable_gqa=groups > 1
        )
    if query.shape[2] == 1:
        packed = query.reshape(query.shape[0], keys.shape[1], groups, -1)
        return F.scaled_dot_product_attention(packed, keys, values, bias, scale=scale).reshape(query.shape)
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(query, keys, values, bias, scale=scale)


def _causal_in_parts(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """`attend` of a first pass on a CPU, `CAUSAL_ROWS` queries at a time: the later keys are not even looked at.

    PyTorch's kernel computes up to 512 keys for every query and then hides those behind it.
    """
    count = query.shape[2]
    hidden = torch.ones(CAUSAL_ROWS, CAUSAL_ROWS, dtype=torch.bool, device=query.device).triu(1)
    parts: list[Tensor] = []
    for start in range(0, count, CAUSAL_ROWS):
        end = min(count, start + CAUSAL_ROWS)
        own = hidden[: end - start, : end - start]
        bias = query.new_zeros(1, 1, end - start, end)
        bias[..., start:].masked_fill_(own, float("-inf"))
        rows = query[:, :, start:end], keys[:, :, :end], values[:, :, :end]
        parts.append(attend(*rows, bias, causal=False, scale=scale))
    return torch.cat(parts, 2)


def mask_bias(states: Tensor, mask: Tensor | None) -> Tensor | None:
    """Convert a mask to the bias that it adds to the scores."""
    return None if mask is None else states.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))


def rms_norm(module: Any, states: Tensor) -> Tensor:
    """Root-mean-square norm, as the module does it, to the bit."""
    wide = states.float()
    if wide.device.type != "cpu":  # `mean` divides there in another way: say what the module says
        return module.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)).to(
            states.dtype
        )
    # A mean is a sum, divided; so it takes fewer passes.
    scale = wide.square().sum(-1, keepdim=True).div_(states.shape[-1]).add_(module.variance_epsilon).rsqrt_()
    return module.weight * (wide * scale).to(states.dtype)


def split_heads(states: Tensor, head_dim: int) -> Tensor:
    """[B, n, heads * head_dim] -> [B, heads, n, head_dim]."""
    return states.view(*states.shape[:2], -1, head_dim).transpose(1, 2)


def signed_sin(sin: Tensor) -> Tensor:
    """The sines with the first half negated: x·cos + rotate_half(x)·sin = x·cos + roll(x)·signed."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), -1)


def rotate(states: Tensor, cos: Tensor, signed: Tensor) -> Tensor:
    """Rotary position embedding of [B, heads, n, head_dim], by cosines and `signed_sin`es [B, 1, n, head_dim]."""
    return states * cos + states.roll(states.shape[-1] // 2, -1) * signed
