"""FastV (Chen et al. 2024): visual tokens with the least attention are dropped after a few layers. LOSSY.

The prompt goes through the first K layers whole. Then the visual tokens are ranked by the attention that the prompt's
last token pays to them in layer K, averaged over heads; the best are kept, at their own positions, and the later layers
see none of the others: neither in the prompt's own pass nor in decode passes.

Rows of a cache have one length for all layers. So a dropped token keeps its place in the later layers, with a key that
no query sees: keys of these layers are one number longer, which is added to the scores (0, or `UNSEEN`). It goes
with the key through every copy of a row. The prompt's pass saves the later layers' work for the dropped tokens; decode
passes save nothing, as they still read the dropped tokens' places.

The ranking needs the prompt's last token, so a prompt is read in one piece and no prefix of it serves another.
"""

from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.engine.cache import KVCache
from crossdraft.engine.devices import to_device
from crossdraft.engine.fast.forward import FastDecoder, attend, mask_bias, rms_norm, rotate
from crossdraft.engine.passes import Pass, PassResult, Segment
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Count, Limit, check_settings

SHARE = Limit("a number above 0 and at most 1", lambda value: 0 < value <= 1)
UNSEEN = -1e4  # added to scaled scores: its exponential is 0


@dataclass(frozen=True, slots=True)
class FastVSettings:
    """Settings of FastV.

    Args:
        layer: K, number of layers after which visual tokens are dropped; the paper's default.
        keep: share of the visual tokens that is kept.

    Raises:
        CrossdraftError: a number outside its range.
    """

    layer: Count = 2
    keep: Annotated[float, SHARE] = 0.5

    def __post_init__(self) -> None:
        check_settings(self, "fastv", "compression")


class FastVDecoder(FastDecoder):
    """A decoder whose later layers can hide tokens.

    Args:
        text, head: as `FastDecoder`.
        settings: layer from which on tokens are hidden, and share of tokens kept.
        shown: ids of visual placeholders.
    """

    whole_prompts = True

    def __init__(self, text: nn.Module, head: nn.Module, settings: FastVSettings, shown: Tensor) -> None:
        super().__init__(text, head)
        self.settings, self.shown = settings, shown

    def features_only(self) -> FastDecoder:
        return FastVDecoder(self.text, super().features_only().head, self.settings, self.shown)

    def __call__(self, one: Pass, cache: KVCache) -> PassResult:
        """Run a pass as `FastDecoder` does; a prompt with visual tokens is read by `read`, in a pass of its own."""
        if not any(row.chunk.encoded for row in one.rows):
            return super().__call__(one, cache)
        parts = [one.part(segment) for segment in one.segments]
        found = [
            self.read(part, cache) if part.rows[0].chunk.encoded else super(FastVDecoder, self).__call__(part, cache)
            for part in parts
        ]
        return torch.cat([scores for scores, _ in found]), lambda layer: torch.cat([get(layer) for _, get in found])

    def read(self, one: Pass, cache: KVCache) -> PassResult:
        """Run one pass over a whole prompt and its draft tree, into an empty row.

        A dropped token's features stay as they were when it was dropped.
        """
        (row,), (segment,) = one.rows, one.segments
        if one.embeds is None:
            raise CrossdraftError("FastV reads features that were encoded before.")
        visual = torch.isin(row.chunk.tokens, self.shown).nonzero().flatten()
        visual, last = to_device(visual, one.ids.device), len(row.chunk.tokens) - 1
        depth = self.settings.layer
        turn, bias = self.rotary(one.embeds, one.positions), mask_bias(one.embeds, cast("Tensor | None", segment.mask))
        states = [one.embeds]
        pairs = list(zip(self.text.layers, cast("list[Any]", cache.layers), strict=True))
        for layer, store in pairs[:depth]:
            states.append(self.layer(layer, store, states[-1], turn, one, [bias]))
        attention = self.attention_to(self.text.layers[depth - 1], states[depth - 1], turn, last)[visual]
        seen = seen_tokens(attention, visual, len(one.ids), self.settings.keep)
        turn = turn[0][seen], turn[1][seen]
        bias = None if bias is None else bias[:, :, seen][..., seen]
        for layer, store in pairs[depth:]:
            stream = self._layer_of_seen(layer, store, states[-1], seen, turn, bias, segment)
            states.append(states[-1].index_copy(0, seen, stream))
        states[-1] = rms_norm(self.text.norm, states[-1])
        return self.head(states[-1][-row.answers :]), states.__getitem__

    def attention_to(self, layer: Any, stream: Tensor, turn: tuple[Tensor, Tensor], query: int) -> Tensor:
        """Attention [query + 1] that a token pays in a layer with input [n, h], averaged over heads."""
        attention = layer.self_attn
        normed = rms_norm(layer.input_layernorm, stream[: query + 1])
        cos, sin = (part[: query + 1] for part in turn)
        keys = rotate(attention.k_proj(normed).unflatten(-1, (-1, attention.head_dim)), cos, sin)
        own = attention.q_proj(normed[-1:]).unflatten(-1, (-1, attention.head_dim))
        own = rotate(own, cos[-1:], sin[-1:]).transpose(0, 1)
        keys = keys.transpose(0, 1).repeat_interleave(own.shape[0] // keys.shape[1], 0)
        scores = (own @ keys.transpose(1, 2))[:, 0] * attention.scaling
        return scores.softmax(-1, torch.float32).mean(0)

    def _layer_of_seen(
        self,
        layer: Any,
        store: Any,
        stream: Tensor,
        seen: Tensor,
        turn: tuple[Tensor, Tensor],
        bias: Tensor | None,
        segment: Segment,
    ) -> Tensor:
        """Run a layer on the tokens `seen` [m] of [n, h]: [m, h]; mark the other tokens' keys as unseen."""
        attention = layer.self_attn
        own = stream[seen]
        normed = rms_norm(layer.input_layernorm, own)
        query, key, value = (
            project(normed).unflatten(-1, (-1, attention.head_dim))
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = self.query(attention, query, turn), self.key(attention, key, turn)
        query, key, value = (states.transpose(0, 1)[None] for states in (query, key, value))
        wide = *key.shape[:2], len(stream)
        keys = key.new_zeros(*wide, key.shape[-1])
        keys[..., -1] = UNSEEN
        values = value.new_zeros(*wide, value.shape[-1])
        store.write(segment.window, keys.index_copy(2, seen, key), values.index_copy(2, seen, value))
        mixed = attend(query, key, value, bias, causal=bias is None, scale=attention.scaling)
        return self.after_attention(layer, own, mixed.transpose(1, 2).flatten(2)[0])

    def query(self, attention: Any, query: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        return self._marked(attention, super().query(attention, query, turn), 1.0)

    def key(self, attention: Any, key: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        return self._marked(attention, super().key(attention, key, turn), 0.0)

    def _marked(self, attention: Any, states: Tensor, mark: float) -> Tensor:
        """Append a number to states [..., d] -> [..., d + 1] in the layers that hide tokens."""
        return F.pad(states, (0, 1), value=mark) if attention.layer_idx >= self.settings.layer else states


def seen_tokens(attention: Tensor, visual: Tensor, size: int, keep: float) -> Tensor:
    """Indices [m] of the tokens of `size` that are kept, in order: all that are not visual, and the best visual ones.

    Args:
        attention: [N] attention that each visual token gets.
        visual: [N] indices of the visual tokens.
        size: number of all tokens.
        keep: share of N that is kept, rounded down, as in FastV's code.

    >>> seen_tokens(torch.tensor([0.1, 0.4, 0.2]), torch.tensor([1, 2, 3]), 6, 0.67).tolist()
    [0, 2, 3, 4, 5]
    """
    kept = torch.ones(size, dtype=torch.bool, device=attention.device)
    kept[visual] = False
    kept[visual[attention.topk(int(len(visual) * keep)).indices]] = True
    return kept.nonzero().flatten()


def fastv_target(target: Target, settings: FastVSettings) -> Target:
    """Make a target that drops visual tokens after its first layers.

    Raises:
        CrossdraftError: its decoder is none of those with an executor `fast`, or has
            at most `settings.layer` layers.
    """
    layers = target.text_config.num_hidden_layers
    if target.fast is None or not (target.fast.plain and target.traits.takes_encoded):
        raise CrossdraftError(
            f"FastV is for Llama and Qwen2 decoders with sdpa attention whose clips are encoded beforehand, which "
            f"{type(target.model).__name__} has not; choose another compression."
        )
    if settings.layer >= layers:
        raise CrossdraftError(f"FastV keeps {settings.layer} layers whole, and the model has {layers}; name fewer.")
    shown = torch.tensor(sorted(target.traits.visual_ids))
    return target.reading(executor=FastVDecoder(target.fast.text, target.fast.head, settings, shown))
