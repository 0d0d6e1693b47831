"""A head's attention while drafting: over a `KVCache` of the text and of the draft's nodes so far."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.cache import KVCache
from crossdraft.heads.networks.layers import Attend, KeyValue, Rotary, rotate

SPARE = 192  # positions of the cache after the answer, for a draft
SLOT = slice(0, 1)


@dataclass(frozen=True)
class CachedAttention:
    """`Attend` over a cache, with a mask for the newest rows.

    Args:
        cache: the cache that keys and values are written to.
        rotary: rotary positions of the head.
        positions: [n] positions of the rows.
        mask: [n, keys], true = the row may attend; `None` = causal.
        text: number of the text's entries in the cache; a draft's entries follow.
    """

    cache: KVCache
    rotary: Rotary
    positions: Tensor
    mask: Tensor | None
    text: int = 0

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._attend(query, *self._store(layer, key, value), self.mask)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        grouped, causal = keys.shape[1] != query.shape[1], mask is None and query.shape[2] > 1
        mixed = F.scaled_dot_product_attention(
            self._rotated(query), keys, values, mask, is_causal=causal, enable_gqa=grouped
        )
        return mixed.to(query.dtype)

    def _store(self, layer: int, key: Tensor, value: Tensor) -> KeyValue:
        """Write keys and values to the cache; return all keys and values in it."""
        return self.cache.update(self._rotated(key), upcast_on_cpu(value), layer)

    def _rotated(self, heads: Tensor) -> Tensor:
        return rotate(upcast_on_cpu(heads), *self._cos_sin)

    @cached_property
    def _cos_sin(self) -> KeyValue:
        return self.rotary.cos_sin(self.positions)


def upcast_on_cpu(rows: Tensor) -> Tensor:
    """Convert bfloat16 on a CPU to float32: attention over one row takes five times as long in bfloat16 there."""
    return rows.float() if rows.dtype is torch.bfloat16 and rows.device.type == "cpu" else rows


def extend_text(
    cache: KVCache, rotary: Rotary, count: int, layers: Callable[[Attend], Tensor], shift: int = 0
) -> Tensor:
    """Run `layers` causally over the next `count` positions of the text, keeping keys and values; return [1, count, H].

    Entry i of the cache has position `i + shift`.
    """
    past, mask, device = cache.lengths[0], None, rotary.cos.device
    if count > 1 and past:
        mask = torch.ones(count, past + count, dtype=torch.bool, device=device).tril_(past)
    cache.open_window(SLOT, count)
    positions = torch.arange(past, past + count, device=device) + shift
    outputs = layers(CachedAttention(cache, rotary, positions, mask))
    cache.advance(0, count)
    return outputs
