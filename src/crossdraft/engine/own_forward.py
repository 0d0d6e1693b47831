"""Executor `hf`: a model's own forward, unmodified, for one segment of a pass after the other."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from crossdraft.engine.cache import KVCache
from crossdraft.engine.passes import Masks, Pass, PassBuilder, PassResult, Segment
from crossdraft.engine.traits import TOKEN_TYPES


class OwnForward:
    """Executor that runs a model's own forward.

    Args:
        passes: builder of the model's passes.
    """

    def __init__(self, passes: PassBuilder) -> None:
        self._passes = passes

    def __call__(self, one: Pass, cache: KVCache) -> PassResult:
        """Run a pass; see `passes.Executor`."""
        scores: list[Tensor] = []
        states: list[tuple[Tensor, ...]] = []
        captured = any(row.capture for row in one.rows)
        segments = one.segments
        for segment in segments:
            cache.window = segment.window
            # Rows of a segment have one token in front of their trees, or there is one row.
            alone = len(segment.rows) == 1
            kept = max(1, segment.rows[0].answers) if alone and segment.real is None else segment.width
            arguments = self._arguments(one, segment)
            if captured:
                arguments["output_hidden_states"] = True
            out = self._passes.model(**arguments, past_key_values=cache, use_cache=True, logits_to_keep=kept)
            kept = out.logits.shape[1]  # some classes give the logits of all tokens, whatever is asked for
            for number, row in enumerate(segment.rows):
                end = len(row) - (segment.width - kept)
                scores.append(out.logits[number, end - row.answers : end])
            states.append(out.hidden_states)

        def layer(index: int) -> Tensor:
            return torch.cat([one.packed(layers[index]) for one, layers in zip(segments, states, strict=True)])

        return torch.cat(scores), layer

    def _arguments(self, one: Pass, segment: Segment) -> dict[str, object]:
        """Arguments of the forward."""
        traits, tokens = self._passes.traits, segment.tokens
        positions = segment.padded(one.positions.T[tokens] if traits.mrope else one.positions[tokens])
        arguments: dict[str, object] = {
            "input_ids": segment.padded(one.ids[tokens]),
            "position_ids": positions.permute(2, 0, 1) if traits.mrope else positions,
            "attention_mask": self._masks(segment.mask),
        }
        chunk = segment.rows[0].chunk
        encoded = chunk.encoded
        if encoded and chunk.routes:
            room = (0, segment.width - len(chunk.tokens))
            arguments |= {name: pad(types, room)[None].to(one.ids.device) for name, types in chunk.routes.items()}
        if encoded and traits.takes_encoded:
            arguments["mm_encoder_outputs"] = dict(encoded)
        elif encoded:
            # Token types span the whole prompt and only serve positions and masks, which are given.
            arguments |= {name: value for name, value in encoded.items() if name not in TOKEN_TYPES}
        return arguments

    def _masks(self, masks: Masks) -> object:
        """The masks as the model's attention takes them."""
        if isinstance(masks, Mapping):
            return {kind: self._mask(one) for kind, one in masks.items()}
        return self._mask(masks)

    def _mask(self, mask: Tensor | None) -> Tensor | None:
        if mask is None or not self._passes.traits.additive_mask:
            return mask
        # Eager attention adds its mask to the scores.
        dtype = self._passes.model.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
