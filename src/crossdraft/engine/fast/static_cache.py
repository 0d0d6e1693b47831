"""A key-value cache for passes of fixed shapes: what a compiled, graph-captured function can be handed.

Rows have one capacity from the beginning, so that their memory does not move while requests come and go. A pass attends
to a window of whole steps; what lies behind a row's own tokens is masked.
"""

from collections.abc import Callable
from weakref import WeakMethod

from torch import Tensor

from crossdraft.engine.cache import KVCache

Views = tuple[list[Tensor], list[Tensor]]


class StaticKVCache(KVCache):
    """Rows that hold `capacity` tokens each, and passes padded by up to `padding` tokens behind them.

    A request that needs more than that makes the rows grow, as in any cache; functions made for the old ones are then
    made anew.

    Args:
        num_layers, max_rows, capacity: as of any cache.
        padding: positions of a row behind those.
        keep: the method that takes it when it is handed back; not kept alive by it.
    """

    def __init__(
        self,
        num_layers: int,
        max_rows: int,
        capacity: int,
        padding: int,
        keep: "Callable[[StaticKVCache], None] | None" = None,
    ) -> None:
        super().__init__(num_layers, max_rows, capacity + padding)
        self.allocated_rows = max_rows
        self._asked, self._keep = self.size, None if keep is None else WeakMethod(keep)
        self.padding = padding
        self.made: dict[object, object] = {}  # whatever somebody made for this very memory
        self._views: dict[tuple[int, int], Views] = {}
        self._seen: Tensor | None = None

    def add_row(self, capacity: int) -> int:
        """As in any cache, with room for the padding."""
        return super().add_row(capacity + self.padding)

    def _shrink(self) -> None:
        """Nothing is given back: memory must not move."""

    @property
    def size(self) -> tuple[int, int]:
        """Rows, and positions of each."""
        return self.max_rows, self.capacity

    @property
    def grown(self) -> bool:
        """True if its rows hold more than they were made for."""
        return self.size != self._asked

    def hand_back(self) -> None:
        """Empty it for the next one who wants one of its size; its owner must not use it any more."""
        while self.rows:
            self.drop_row(self.rows - 1)
        keep = None if self._keep is None else self._keep()
        if keep is not None:
            keep(self)

    @property
    def ready(self) -> bool:
        """True if the first pass has run: every layer has its memory."""
        return all(layer.is_initialized for layer in self._stores)

    @property
    def memory_rows(self) -> int:
        """Rows that have memory, in use or not."""
        return self._stores[0].keys.shape[0]

    def starts(self, rows: int) -> list[int]:
        """Next write position of each of the first `rows` rows; 0 for rows that are not in use."""
        return [self.lengths[row] if row < self.rows else 0 for row in range(rows)]

    def views(self, rows: int, window: int) -> Views:
        """Keys and values [rows, heads, window, head_dim] of each layer, of the first rows and positions."""
        self.check_memory()
        if (rows, window) not in self._views:
            keys = [layer.keys[:rows, :, :window] for layer in self._stores]
            self._views[rows, window] = keys, [layer.values[:rows, :, :window] for layer in self._stores]
        return self._views[rows, window]

    def check_memory(self) -> None:
        """Forget what was made for memory that is another now."""
        if self._stores[0].keys is not self._seen:
            self._seen = self._stores[0].keys
            self._views.clear()
            self.made.clear()


def hand_back(cache: KVCache) -> None:
    """Give up a cache that its owner does not use any more: what was made for its memory serves the next one."""
    if isinstance(cache, StaticKVCache):
        cache.hand_back()
