"""A text decoder's layers, run one after another without the wrappers around them.

A decode step of a small model, or of a large one on a fast GPU, spends a good part of its time in `transformers`'
wrappers: output recording, mask construction, kernel dispatch, argument checks. Passes go through these few lines
instead, with the model's own modules, in the order of `LlamaDecoderLayer.forward`: operation by operation the same
arithmetic. Decoders of another anatomy keep their own forward.

Only the last token of a prompt needs logits: for the others the last layer computes keys and values alone.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaModel, PreTrainedModel, Qwen2Model

from crossdraft.engine.cache import KVCache
from crossdraft.engine.fast.elastic import PollHook, poll
from crossdraft.engine.passes import Pass, PassResult, Segment

ANATOMIES = (LlamaModel, Qwen2Model)  # pre-norm, rotary, gated MLP; with or without biases and grouped heads
# Further decoders of transformers, by name, as their modules import much: if positions have several axes, and if visual
# features are embeddings alone (Qwen3-VL adds some to the states of layers, which is left to its own forward).
NAMED = {
    "Qwen3Model": (False, True),
    "Qwen2VLTextModel": (True, True),
    "Qwen2_5_VLTextModel": (True, True),
    "Qwen3VLTextModel": (True, False),
}
RECORDERS = "transformers.utils.output_capturing"  # its hooks stay once states were asked for, and record on demand
CAUSAL_ROWS = 96  # queries of a first pass that attend at once on a CPU
PACKED = 16  # tokens of a row whose grouped heads attend as one head on a CPU


class FastDecoder:
    """Executor `fast`: the decoder and head of a vision-language model; see `find_fast`.

    Args:
        text: a decoder of one of `ANATOMIES`, which are `plain`, or `NAMED`.
        head: hidden states -> logits.
    """

    whole_prompts = False  # whether it must read a prompt with images or clips in one piece

    def __init__(self, text: nn.Module, head: nn.Module) -> None:
        self.text: Any = text
        self.head = head
        self.plain = type(text) in ANATOMIES
        self.embeds_features = NAMED.get(type(text).__name__, (False, True))[1]
        self.norms = hasattr(self.text.layers[0].self_attn, "q_norm")  # of queries and keys
        skipped = [text, *self.text.layers]
        for layer in self.text.layers:
            skipped += [layer.self_attn, layer.mlp, layer.input_layernorm, layer.post_attention_layernorm]
            skipped += [layer.self_attn.q_norm, layer.self_attn.k_norm] if self.norms else []
            if isinstance(layer.mlp.act_fn, nn.Module):
                skipped.append(layer.mlp.act_fn)  # its output is overwritten
        self._hooks = [table for m in skipped for table in (m._forward_pre_hooks, m._forward_hooks)]  # noqa: SLF001

    def features_only(self) -> "FastDecoder":
        """A copy of the decoder without a head: its logits are [W, 0]."""
        return FastDecoder(self.text, _NoHead())

    @property
    def usable(self) -> bool:
        """False while a module whose forward is skipped here has hooks, which would not run."""
        hooks = (hook for table in self._hooks if table for hook in table.values())
        return all(isinstance(hook, PollHook) or getattr(hook, "__module__", "") == RECORDERS for hook in hooks)

    def __call__(self, one: Pass, cache: KVCache) -> PassResult:
        """Run a pass; see `passes.Executor`.

        The last layer computes keys and values alone for tokens whose outputs are not wanted.
        """
        embeds = self.text.embed_tokens(one.ids) if one.embeds is None else one.embeds
        turn = self.rotary(embeds, one.positions)
        biases = [mask_bias(embeds, cast("Tensor | None", segment.mask)) for segment in one.segments]
        layers, stores = list(self.text.layers), cast("list[Any]", cache.layers)
        answered = None if self._wants_last(one) else one.answered
        states = [embeds]
        for layer, store in zip(layers, stores, strict=True):
            wanted = answered if layer is layers[-1] else None
            states.append(self.layer(layer, store, states[-1], turn, one, biases, wanted))
        states[-1] = rms_norm(self.text.norm, states[-1])
        last = states[-1] if one.answered is None or answered is not None else states[-1][one.answered]
        return self.head(last), states.__getitem__

    def _wants_last(self, one: Pass) -> bool:
        """True if the last layer's output is also wanted of tokens that are not answered."""
        last = {-1, len(self.text.layers)}
        return any(not last.isdisjoint(row.capture) for row in one.rows)

    def rotary(self, embeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 1, d] rotary factors of queries and keys of tokens [N, h] at [N] or [axes, N]: cosine and signed sine."""
        cos, sin = self.text.rotary_emb(embeds[None], positions.unsqueeze(-2))
        return cos[0].unsqueeze(1), signed_sin(sin[0].unsqueeze(1))

    def layer(
        self,
        layer: Any,
        store: Any,
        stream: Tensor,
        turn: tuple[Tensor, Tensor],
        one: Pass,
        biases: Sequence[Tensor | None],
        wanted: Tensor | None = None,
    ) -> Tensor:
        """[N, h] -> [N, h], or [W, h] of the `wanted` tokens alone.

        Args:
            layer, store: a decoder layer, and the store of its keys and values.
            stream: input of the layer.
            turn: see `rotary`.
            one, biases: the pass, and the biases that each segment's mask adds to the scores.
            wanted: [W] tokens that are answered, if outputs of no other tokens are needed.
        """
        attention = layer.self_attn
        poll()
        normed = rms_norm(layer.input_layernorm, stream)
        query, key, value = (
            project(normed).unflatten(-1, (-1, attention.head_dim))
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = self.query(attention, query, turn), self.key(attention, key, turn)
        mixed: list[Tensor] = []
        for segment, bias in zip(one.segments, biases, strict=True):
            own = [segment.padded(states[segment.tokens]).transpose(1, 2) for states in (query, key, value)]
            mixed.append(_mixed(attention.scaling, store, segment, own, bias, whole=wanted is None))
        if wanted is not None:
            stream = stream[wanted]
        return self.after_attention(layer, stream, torch.cat(mixed) if len(mixed) > 1 else mixed[0])

    def after_attention(self, layer: Any, stream: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output, from its input [m, h] and its heads' attention [m, H * d]."""
        attention, mlp = layer.self_attn, layer.mlp
        poll()
        stream = stream + attention.o_proj(mixed)
        normed = rms_norm(layer.post_attention_layernorm, stream)
        inner = mlp.act_fn(mlp.gate_proj(normed)).mul_(mlp.up_proj(normed))
        poll()
        return stream + mlp.down_proj(inner)

    def query(self, attention: Any, query: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """[N, H, d] -> [N, H, d], the rotated queries of a layer."""
        return rotate(rms_norm(attention.q_norm, query) if self.norms else query, *turn)

    def key(self, attention: Any, key: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """[N, G, d] -> [N, G, d], the rotated keys as the cache keeps them."""
        return rotate(rms_norm(attention.k_norm, key) if self.norms else key, *turn)


def find_fast(model: PreTrainedModel, *, mrope: bool = False) -> FastDecoder | None:
    """The executor `fast` of a model, if its decoder has a known anatomy and its weights are not offloaded.

    Args:
        model: the model.
        mrope: if its positions have several axes.
    """
    base = model.base_model
    text: Any = getattr(base, "language_model", getattr(base, "text_model", base))
    head = model.get_output_embeddings()
    if head is None or text.config._attn_implementation != "sdpa" or not _is_known(text, mrope=mrope):
        return None
    moved = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate's doing
    return None if moved else FastDecoder(text, head)


def _is_known(text: Any, *, mrope: bool) -> bool:
    kind = type(text)
    if kind in ANATOMIES:
        return not mrope
    known = NAMED.get(kind.__name__, (None,))[0] is mrope and kind.__module__.startswith("transformers.models.")
    # Without that method, factors have a form of their own.
    return known and (not mrope or hasattr(text.rotary_emb, "recomposition_frequencies"))


def _mixed(
    scale: float, store: Any, segment: Segment, own: Sequence[Tensor], bias: Tensor | None, *, whole: bool
) -> Tensor:
    """[m, H * d] attention of a segment's tokens; unless `whole`, of its answered tokens only.

    Args:
        scale: scale of the scores.
        store: store of keys and values.
        segment: rows.
        own: [B, H, n, d] queries, keys and values of their tokens.
        bias: [B, 1, n, keys] added to the scores.
    """
    query, key, value = own
    keys, values = store.write(segment.window, key, value)
    several, row = len(segment.rows) > 1, segment.rows[0]
    answers = len(row) if whole or several else row.answers
    if not answers:
        return query.new_empty(0, query.shape[1] * query.shape[3])
    fewer = not several and (bias is not None or answers == 1)
    if fewer:
        query, bias = query[:, :, -answers:], None if bias is None else bias[:, :, -answers:]
    causal = bias is None and query.shape[2] > 1  # only a first pass over several tokens goes without a mask
    mixed = attend(query, keys, values, bias, causal=causal, scale=scale).transpose(1, 2).flatten(2)
    return segment.packed(mixed) if several else mixed[0, -answers:]


class _NoHead(nn.Module):
    """A head that returns logits of width 0."""

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
        masked_groups: true if the kernels take a bias and grouped heads at once; `None` = on a CPU only. But there they
            multiply by one head's queries at a time, and in bfloat16 one query takes longer than six. So the heads of
            up to `PACKED` queries are treated as queries of one head. CUDA's fused kernels do not take both, and the
            plain kernel writes all scores to memory. So, as in `transformers`, a single query's heads are treated so;
            for more queries the keys and values are repeated.

    Returns:
        [B, H, n, d].
    """
    if causal and query.device.type == "cpu" and query.shape[2] > CAUSAL_ROWS:
        return _causal_in_parts(query, keys, values, scale)
    groups = query.shape[1] // keys.shape[1]
    if masked_groups is None:
        masked_groups = query.device.type == "cpu"
    packs = query.shape[2] <= PACKED if masked_groups else query.shape[2] == 1 and bias is not None
    if groups > 1 and packs and not causal:
        packed = query.reshape(query.shape[0], keys.shape[1], -1, query.shape[3])
        bias = None if bias is None else bias.repeat(1, 1, groups, 1)
        return F.scaled_dot_product_attention(packed, keys, values, bias, scale=scale).reshape(*query.shape[:3], -1)
    if groups == 1 or bias is None or masked_groups:
        return F.scaled_dot_product_attention(
            query, keys, values, bias, is_causal=causal, scale=scale, enable_gqa=groups > 1
        )
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(query, keys, values, bias, scale=scale)


def _causal_in_parts(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of a first pass on a CPU, `CAUSAL_ROWS` queries at a time, without reading later keys.

    PyTorch's kernel computes up to 512 keys for every query and then masks the later ones.
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
    """Root-mean-square norm, equal to the module's to the bit."""
    wide = states.float()
    if wide.device.type != "cpu":  # other kernels of `rms_norm` may round otherwise: compute as the module does
        return module.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)).to(
            states.dtype
        )
    return module.weight * torch.rms_norm(wide, wide.shape[-1:], None, module.variance_epsilon).to(states.dtype)


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
