"""PassInputs: ids, positions and masks of a pass, as a target's model takes them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.cache import KVCache
from crossdraft.engine.devices import entry_device, to_device
from crossdraft.engine.passes import Chunk, Masks
from crossdraft.engine.prompt import Encoded
from crossdraft.engine.traits import detect_traits
from crossdraft.engine.tree import DraftTree

TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")


class PassInputs:
    """See the module's text.

    Args:
        model: in eval mode.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        self.device = entry_device(model)
        self.traits = detect_traits(model)

    def _inputs(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int
    ) -> tuple[Tensor, Tensor]:
        """Ids [B, width] and positions [(3,) B, width] of one pass; rows are padded after their tree."""
        ids, positions = [], []
        for row, (chunk, tree) in enumerate(zip(chunks, trees, strict=True), rows.start):
            m, start = len(chunk.tokens), cache.lengths[row] + cache.rope_deltas[row]
            padding = [0] * (width - m - len(tree))
            ids.append([*chunk.tokens.tolist(), *tree.tokens, *padding])
            nodes = [start + m - 1 + depth for depth in self._depths(tree)]
            positions.append([*range(start, start + m), *nodes, *padding])
        table = self._position_ids(torch.tensor(positions), chunks).view(-1, len(ids), width)
        sent = to_device(torch.cat([torch.tensor(ids)[None], table]), self.device)
        return sent[0], sent[1:] if self.traits.mrope else sent[1]

    def _embeds(self, ids: Tensor, sizes: Sequence[int], given: Sequence[Tensor | None]) -> Tensor:
        """[B, width, h] what ids [B, width] are read as; those that end each row's `sizes` may be given."""
        embeds = self.model.get_input_embeddings()(ids).clone()
        for row, (size, last) in enumerate(zip(sizes, given, strict=True)):
            if last is not None:
                embeds[row, size - len(last) : size] = last.to(embeds)
        return embeds

    def _arguments(
        self, ids: Tensor, positions: Tensor, mask: Masks, encoded: Encoded | None, embeds: Tensor | None
    ) -> dict[str, object]:
        """Build the arguments of the model's own forward."""
        taken = (
            {kind: self._as_taken(one) for kind, one in mask.items()}
            if isinstance(mask, dict)
            else self._as_taken(mask)
        )
        arguments: dict[str, object] = {"input_ids": ids, "position_ids": positions, "attention_mask": taken}
        if embeds is not None:  # after text alone: features that replace placeholders need their ids
            arguments["input_ids"], arguments["inputs_embeds"] = None, embeds
        if encoded and self.traits.takes_encoded:
            arguments["mm_encoder_outputs"] = dict(encoded)
        elif encoded:
            # Token types span the whole prompt and only serve positions and masks, which are given.
            arguments |= {name: value for name, value in encoded.items() if name not in TOKEN_TYPES}
        return arguments

    def _as_taken(self, mask: Tensor | None) -> Tensor | None:
        """A mask as the model's attention takes it."""
        if mask is None or not self.traits.additive_mask:
            return mask
        # Eager attention adds its mask to the scores.
        lowest = torch.finfo(self.model.dtype).min
        return torch.zeros_like(mask, dtype=self.model.dtype).masked_fill_(~mask, lowest)

    def _depths(self, tree: DraftTree) -> Sequence[int]:
        return tree.depths

    def _position_ids(self, positions: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        if self.traits.mrope:
            positions = positions.expand(3, *positions.shape).contiguous()
        for row, chunk in enumerate(chunks):
            if chunk.positions is not None:
                positions[..., row, : len(chunk.tokens)] = chunk.positions
        return positions

    def _masks(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int, keys: int
    ) -> Masks:
        """The mask of a pass; one for each type of layer where sliding layers see less."""
        mask = self._mask(cache, rows, chunks, trees, width, keys)
        if self.traits.window is None or keys <= self.traits.window:
            return mask
        near = self._near(cache, rows, chunks, trees, width, keys)
        if mask is None and width > 1:  # whose first pass is all causal
            mask = torch.ones(width, keys, dtype=torch.bool, device=self.device).tril()[None, None]
        sliding = near if mask is None else mask & near
        return sliding if self.traits.all_slide else {"full_attention": mask, "sliding_attention": sliding}

    def _near(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int, keys: int
    ) -> Tensor:
        """[B, 1, width, keys], True = not further back than a sliding layer looks, along a node's own path."""
        own, index = [], []
        for length, chunk, tree in zip(cache.lengths[rows], chunks, trees, strict=True):
            m, n = len(chunk.tokens), len(tree)
            nodes = [length + m - 1 + depth for depth in tree.depths]
            # Padding, too, sees at least itself: nothing but NaN comes of a query that sees nothing.
            own.append([*range(length, length + m), *nodes, *range(length + m + n, length + width)])
            index.append([*range(length), *own[-1], *range(length + width, keys)])
        queries, seen = (to_device(torch.tensor(table), self.device) for table in (own, index))
        return seen[:, None, None] > queries[:, None, :, None] - (self.traits.window or keys)

    def _mask(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int, keys: int
    ) -> Tensor | None:
        """[B, 1, width, keys], True = may attend. `None` where the plain causal path says the same."""
        lengths = cache.lengths[rows]
        level = len(set(lengths)) == 1
        plain = all(tree.is_chain for tree in trees) and level and all(chunk.images is None for chunk in chunks)
        if plain and (width == 1 or lengths[0] == 0):
            return None
        past: int | Tensor = lengths[0]
        if not level:
            past = to_device(torch.tensor(lengths), self.device).view(-1, 1, 1, 1)
        # Up to itself is right for a chunk and for a chain; what is padded after them nobody sees.
        queries = torch.arange(width, device=self.device)[:, None]
        causal = torch.arange(keys, device=self.device) <= past + queries
        mask = causal.expand(len(chunks), 1, width, keys).contiguous()
        for row, (chunk, tree) in enumerate(zip(chunks, trees, strict=True)):
            if not tree.is_chain:
                m, n = len(chunk.tokens), len(tree)
                first = lengths[row] + m
                mask[row, 0, m : m + n, first : first + n] = to_device(tree.visible, self.device)
            if chunk.images is not None:
                whole = (chunk.images[:, None] == chunk.images) & (chunk.images >= 0)
                m, first = len(whole), lengths[row]
                mask[row, 0, :m, first : first + m] |= to_device(whole, self.device)
        return mask

    def _sent(self, value: Tensor) -> Tensor:
        return as_input(self.model, self.device, value)


def as_input(model: PreTrainedModel, device: torch.device, value: Tensor) -> Tensor:
    """A value on the device that a model reads from, in the model's dtype if it is a floating point number."""
    value = value.to(device)
    return value.to(model.dtype) if value.is_floating_point() else value
