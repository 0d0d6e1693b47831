"""How a head reads on in the text: one causal pass over new places, whose keys and values are kept for later ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.cache import KVCache
from crossdraft.models.heads.parts import Attend, Rotary, Rows

SPARE = 192  # places of the cache behind the answer, for a draft
SLOT = slice(0, 1)


@dataclass(frozen=True)
class Cached:
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

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, alone: Rows | None = None
    ) -> Tensor:
        keys, values = self.cache.update(self.rotary(key, self.places), value, layer)
        if alone is None:
            return self._mix(query, keys, values, self.mask)
        seen, count = self.mask, query.shape[2]
        if seen is None:
            seen = torch.ones(count, keys.shape[2], dtype=torch.bool, device=query.device)
            seen = seen.tril_(keys.shape[2] - count)
        own = torch.eye(count, dtype=torch.bool, device=query.device)
        keys = torch.cat((keys, self.rotary(alone[0], self.places)), 2)
        return self._mix(query, keys, torch.cat((values, alone[1]), 2), torch.cat((seen, own), 1))

    def across(self, layer: int, query: Tensor, fresh: Rows | None) -> Tensor:
        if fresh is None:
            keys, values = self.cache.first(layer, self.text)
            mask = torch.ones(query.shape[2], self.text, dtype=torch.bool, device=query.device)
            return self._mix(query, keys, values, mask)
        keys, values = self.cache.update(self.rotary(fresh[0], self.places), fresh[1], layer)
        return self._mix(query, keys, values, self.mask)

    def _mix(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        grouped, first = keys.shape[1] != query.shape[1], mask is None and query.shape[2] > 1
        return F.scaled_dot_product_attention(
            self.rotary(query, self.places), keys, values, mask, is_causal=first, enable_gqa=grouped
        )


def read_on(
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
    outputs = layers(Cached(cache, rotary, places, mask))
    cache.advance(0, count)
    return outputs
