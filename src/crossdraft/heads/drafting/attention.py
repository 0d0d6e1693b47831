"""How a head reads on in the text: one causal pass over new places, whose keys and values are kept for later ones."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.cache import KVCache
from crossdraft.heads.networks.layers import Attend, KeyValue, Rotary, rotate

SPARE = 192  # places of the cache behind the answer, for a draft
SLOT = slice(0, 1)


@dataclass(frozen=True)
class CachedAttention:
    """Attention over a cache whose window is open.

    Args:
        cache: where keys and values go.
        rotary: the head's.
        places: [n] positions of the rows.
        mask: [n, keys], true = may attend; `None` = everything up to itself.
        text: how many places of the cache are the text's, in front of a draft's own.
    """

    cache: KVCache
    rotary: Rotary
    places: Tensor
    mask: Tensor | None
    text: int = 0

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, alone: KeyValue | None = None) -> Tensor:
        keys, values = self._store(layer, key, value)
        if alone is None:
            return self._mix(query, keys, values, self.mask)
        seen, count = self.mask, query.shape[2]
        if seen is None:
            seen = torch.ones(count, keys.shape[2], dtype=torch.bool, device=query.device)
            seen = seen.tril_(keys.shape[2] - count)
        own = torch.eye(count, dtype=torch.bool, device=query.device)
        keys = torch.cat((keys, self._turned(alone[0])), 2)
        values = torch.cat((values, alone[1].to(values.dtype)), 2)
        return self._mix(query, keys, values, torch.cat((seen, own), 1))

    def cross_attend(self, layer: int, query: Tensor, fresh: KeyValue | None) -> Tensor:
        if fresh is None:
            keys, values = self.cache.first(layer, self.text)
            mask = torch.ones(query.shape[2], self.text, dtype=torch.bool, device=query.device)
            return self._mix(query, keys, values, mask)
        return self._mix(query, *self._store(layer, *fresh), self.mask)

    def _mix(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        grouped, first = keys.shape[1] != query.shape[1], mask is None and query.shape[2] > 1
        mixed = F.scaled_dot_product_attention(
            self._turned(query), keys, values, mask, is_causal=first, enable_gqa=grouped
        )
        return mixed.to(query.dtype)

    def _store(self, layer: int, key: Tensor, value: Tensor) -> KeyValue:
        """Write rows behind those that are there; returns all of them."""
        return self.cache.update(self._turned(key), wide(value), layer)

    def _turned(self, heads: Tensor) -> Tensor:
        return rotate(wide(heads), *self._rows)

    @cached_property
    def _rows(self) -> KeyValue:
        return self.rotary.rows(self.places)


def wide(rows: Tensor) -> Tensor:
    """As a CPU mixes them fastest: attention over one row takes five times as long in bfloat16 as in float32."""
    return rows.float() if rows.dtype is torch.bfloat16 and rows.device.type == "cpu" else rows


def extend_text(
    cache: KVCache, rotary: Rotary, count: int, layers: Callable[[Attend], Tensor], shift: int = 0
) -> Tensor:
    """What `layers` make of the next `count` places of the text, [1, count, H]; the cache then holds these too.

    The row at place i of the cache has position `i + shift`.
    """
    past, mask, device = cache.lengths[0], None, rotary.cos.device
    if count > 1 and past:
        mask = torch.ones(count, past + count, dtype=torch.bool, device=device).tril_(past)
    cache.open_window(SLOT, count)
    places = torch.arange(past, past + count, device=device) + shift
    outputs = layers(CachedAttention(cache, rotary, places, mask))
    cache.advance(0, count)
    return outputs
