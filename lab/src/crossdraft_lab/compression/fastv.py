"""FastV (Chen et al. 2024): visual tokens are dropped after a few layers, by the attention that they get. LOSSY.

The prompt goes through the first K layers whole. Then the visual tokens are ranked by the attention that the prompt's
last token pays to them in layer K, averaged over heads; the best are kept, at their own positions, and the later layers
know nothing of the others: neither the prompt's own pass nor what is written after it.

Rows of a cache have one length for all layers. So a dropped token keeps its place in the later layers, with a key that
no query sees: keys of these layers are one number longer, which is added to the scores (0, or `UNSEEN`). It goes
with the key through every copy of a row. The prompt's pass saves the later layers' work for the dropped tokens; decode
passes save nothing, as they still read over their places.

The ranking needs the prompt's last token, so a prompt is read in one piece and no prefix of it serves another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.devices import to_device
from crossdraft.engine.fast.forward import FastDecoder, attend, mask_bias, rms_norm, rotate, split_heads
from crossdraft.engine.passes import NO_PREFIX, Chunk, Prefill, PrefillChunk, RideAlong, TargetOut
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Count, Limit, check_settings

SHARE = Limit("a number above 0 and at most 1", lambda value: 0 < value <= 1)
UNSEEN = -1e4  # times the scale of the scores: its exponential is 0


@dataclass(frozen=True, slots=True)
class FastVSettings:
    """Settings of FastV.

    Args:
        layer: K, after how many layers visual tokens are dropped; the paper's default.
        keep: share of them that is kept.

    Raises:
        CrossdraftError: a number outside its range.
    """

    layer: Count = 2
    keep: Annotated[float, SHARE] = 0.5

    def __post_init__(self) -> None:
        check_settings(self, "fastv", "compression")


class FastVDecoder(FastDecoder):
    """A decoder whose later layers may be told not to see a token.

    Args:
        text, head: as `FastDecoder`.
        settings: which layers these are.
    """

    def __init__(self, text: nn.Module, head: nn.Module, settings: FastVSettings) -> None:
        super().__init__(text, head)
        self.settings = settings

    def features_only(self) -> FastDecoder:
        return FastVDecoder(self.text, super().features_only().head, self.settings)

    def read(
        self,
        embeds: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache,
        visual: Tensor,
        last: int,
        kept: int,
    ) -> tuple[Tensor, list[Tensor]]:
        """One pass over a whole prompt and its draft tree, [1, n, h], into an empty row.

        Args:
            embeds, positions, mask, cache, kept: as `FastDecoder.__call__`.
            visual: [N] where the visual tokens stand.
            last: where the prompt's last token stands.

        Returns:
            As `FastDecoder.__call__`; a dropped token's features stay as they were when it was dropped.
        """
        depth = self.settings.layer
        turn, bias = self._turn(embeds, positions), mask_bias(embeds, mask)
        states = [embeds]
        pairs = list(zip(self.text.layers, cast("list[Any]", cache.layers), strict=True))
        for layer, store in pairs[:depth]:
            states.append(self._layer(layer, store, states[-1], turn, bias))
        attention = self.attention_to(self.text.layers[depth - 1], states[depth - 1], turn, last)[visual]
        seen = seen_tokens(attention, visual, embeds.shape[1], self.settings.keep)
        turn = turn[0][:, :, seen], turn[1][:, :, seen]
        bias = None if bias is None else bias[:, :, seen][..., seen]
        for layer, store in pairs[depth:]:
            stream = self._layer_of_seen(layer, store, states[-1], seen, turn, bias)
            states.append(states[-1].index_copy(1, seen, stream))
        states[-1] = rms_norm(self.text.norm, states[-1])
        return self.head(states[-1][:, -kept:]), states

    def attention_to(self, layer: Any, stream: Tensor, turn: tuple[Tensor, Tensor], query: int) -> Tensor:
        """[query + 1] the attention that a token pays in a layer of input [1, n, h], averaged over heads."""
        attention = layer.self_attn
        normed = rms_norm(layer.input_layernorm, stream[:, : query + 1])
        cos, sin = (part[:, :, : query + 1] for part in turn)
        keys = rotate(split_heads(attention.k_proj(normed), attention.head_dim), cos, sin)
        own = split_heads(attention.q_proj(normed[:, -1:]), attention.head_dim)
        own = rotate(own, cos[:, :, -1:], sin[:, :, -1:])
        keys = keys.repeat_interleave(own.shape[1] // keys.shape[1], 1)
        scores = (own @ keys.transpose(2, 3))[0, :, 0] * attention.scaling
        return scores.softmax(-1, torch.float32).mean(0)

    def _layer_of_seen(
        self, layer: Any, store: Any, stream: Tensor, seen: Tensor, turn: tuple[Tensor, Tensor], bias: Tensor | None
    ) -> Tensor:
        """[1, m, h] a layer of the tokens `seen` [m] among [1, n, h]; the others are remembered as unseen."""
        attention = layer.self_attn
        own = stream[:, seen]
        normed = rms_norm(layer.input_layernorm, own)
        query, key, value = (
            split_heads(project(normed), attention.head_dim)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = self._query(attention, query, turn), self._key(attention, key, turn)
        wide = *key.shape[:2], stream.shape[1]
        keys = key.new_zeros(*wide, key.shape[-1])
        keys[..., -1] = UNSEEN
        values = value.new_zeros(*wide, value.shape[-1])
        store.update(keys.index_copy(2, seen, key), values.index_copy(2, seen, value))
        mixed = attend(query, key, value, bias, causal=bias is None, scale=attention.scaling)
        return self._after_attention(layer, own, mixed)

    def _query(self, attention: Any, query: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        return self._marked(attention, rotate(query, *turn), 1.0)

    def _key(self, attention: Any, key: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        return self._marked(attention, rotate(key, *turn), 0.0)

    def _marked(self, attention: Any, states: Tensor, mark: float) -> Tensor:
        """[..., d] -> [..., d + 1] in the layers that may not see everything."""
        return F.pad(states, (0, 1), value=mark) if attention.layer_idx >= self.settings.layer else states


def seen_tokens(attention: Tensor, visual: Tensor, size: int, keep: float) -> Tensor:
    """[m] the tokens of `size` that are kept, in order: all that are not visual, and of those the best.

    Args:
        attention: [N] that each visual token gets.
        visual: [N] where they stand.
        size: all tokens.
        keep: share of N that is kept, rounded down, as FastV's code has it.

    >>> seen_tokens(torch.tensor([0.1, 0.4, 0.2]), torch.tensor([1, 2, 3]), 6, 0.67).tolist()
    [0, 2, 3, 4, 5]
    """
    kept = torch.ones(size, dtype=torch.bool, device=attention.device)
    kept[visual] = False
    kept[visual[attention.topk(int(len(visual) * keep)).indices]] = True
    return kept.nonzero().flatten()


class FastVTarget(Target):
    """A target that drops visual tokens after its first layers.

    Raises:
        CrossdraftError: its decoder is none of those with a lean path, or has no more layers than are to be whole.
    """

    keeps_prefixes = False

    def __init__(self, target: Target, settings: FastVSettings) -> None:
        super().__init__(
            target.model, target.prepare, target.text, tuple(target.eos), tuple(target.reserved), target.defaults
        )
        layers = self.text_config.num_hidden_layers
        if self._lean is None or not self.traits.takes_encoded:
            raise CrossdraftError(
                f"FastV is for Llama and Qwen2 decoders with sdpa attention whose clips are encoded beforehand, which "
                f"{type(self.model).__name__} has not; choose another compression."
            )
        if settings.layer >= layers:
            raise CrossdraftError(f"FastV keeps {settings.layer} layers whole, and the model has {layers}; name fewer.")
        self._lean = FastVDecoder(self._lean.text, self._lean.head, settings)

    @property
    def reads_pairs(self) -> bool:
        return False

    def compile(self, max_rows: int = 1, widest: int = 0, *, now: bool = True) -> None:
        raise CrossdraftError("Passes of a target with FastV cannot be compiled; leave out compile.")

    def chunks(
        self, prompt: Prompt, encoded: Encoded | None, start: int = 0, *, joined: bool = False
    ) -> tuple[list[Chunk], int]:
        """One piece: which tokens are dropped depends on the last."""
        pieces, delta = super().chunks(prompt, encoded, start, joined=joined)
        if not any(piece.encoded for piece in pieces):
            return pieces, delta
        if start:
            raise CrossdraftError("A target with FastV reads every prompt whole; nothing of it can be known before.")
        return [Chunk(prompt.input_ids.cpu(), encoded=encoded)], delta

    def cut(self, piece: Chunk, size: int) -> tuple[Chunk, Chunk | None]:
        """A visual piece stays whole."""
        return (piece, None) if piece.encoded else super().cut(piece, size)

    def extend_shared(
        self,
        cache: KVCache,
        rows: slice,
        chunks: Sequence[Chunk],
        trees: Sequence[DraftTree],
        capture: Sequence[int],
        extra: PrefillChunk,
    ) -> tuple[TargetOut, TargetOut] | None:
        """A visual piece shares no pass."""
        return None if extra.chunk.encoded else super().extend_shared(cache, rows, chunks, trees, capture, extra)

    @torch.inference_mode()
    def prefill(
        self,
        cache: KVCache,
        prompt: Prompt,
        encoded: Encoded | None,
        capacity: int,
        ride_along: Callable[[], RideAlong] | None = None,
        capture: Sequence[int] = (),
        visual_capture: Sequence[int] = (),
        prefix: KVPrefix = NO_PREFIX,
        answered: TargetOut | None = None,
    ) -> Prefill:
        """As `Target.prefill`; features of the visual part are told apart, as if it had been a piece of its own."""
        wanted = (*capture, *visual_capture)
        read = super().prefill(cache, prompt, encoded, capacity, ride_along, wanted, (), prefix, answered)
        pieces, _ = super().chunks(prompt, encoded)
        if len(read.pieces) == len(pieces):
            return replace(read, out=_part(read.out, slice(0, len(capture)), 0, None))
        cut = len(pieces[0].tokens)
        front = _part(read.out, slice(len(capture), None), 0, cut)
        out = _part(read.out, slice(0, len(capture)), cut, None)
        return replace(read, pieces=tuple(pieces), front=[replace(front, logits=[front.logits[0][:0]])], out=out)

    @torch.inference_mode()
    def extend(
        self,
        cache: KVCache,
        rows: slice,
        chunks: Sequence[Chunk],
        trees: Sequence[DraftTree],
        capture: Sequence[int] = (),
        probe_embeds: Sequence[Tensor | None] = (),
    ) -> TargetOut:
        """As `Target.extend`; a visual prompt is read by `FastVDecoder.read`."""
        if not chunks[0].encoded:
            return super().extend(cache, rows, chunks, trees, capture, probe_embeds)
        (chunk,), (tree,), lean = chunks, trees, self._lean
        m, width = len(chunk.tokens), len(chunk.tokens) + len(tree)
        keys = cache.open_window(rows, width)
        ids, positions = self._inputs(cache, rows, chunks, trees, width)
        embeds = self._read(chunk, ids)
        if not isinstance(lean, FastVDecoder) or embeds is None:
            raise CrossdraftError(
                "FastV cannot read this prompt: its visual features are not one for each placeholder."
            )
        if probe_embeds and (last := probe_embeds[0]) is not None:
            embeds[0, width - len(last) :] = last.to(embeds)
        mask = self._mask(cache, rows, chunks, trees, width, keys)
        visual = torch.isin(chunk.tokens, torch.tensor(sorted(self.traits.visual_ids))).nonzero().flatten()
        began = self.clock.mark()
        scores, states = lean.read(embeds, positions, mask, cache, to_device(visual, self.device), m - 1, 1 + len(tree))
        done = self.clock.mark()
        cache.advance(rows.start, m)
        return TargetOut([scores[0]], [tuple(states[layer][0] for layer in capture)], began, done, width)


def _part(out: TargetOut, layers: slice, start: int, stop: int | None) -> TargetOut:
    """A pass's output with these of its captured layers, at these tokens."""
    return replace(out, hidden=[tuple(layer[start:stop] for layer in row[layers]) for row in out.hidden])
