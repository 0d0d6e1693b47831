"""A key-value cache for passes of fixed shapes, which a compiled, graph-captured function can be given.

Rows have one capacity from the beginning, so that their memory does not move while requests come and go. A pass attends
to a window of whole steps; positions after a row's own tokens are masked.
"""

from collections.abc import Callable
from weakref import WeakMethod

from torch import Tensor

from crossdraft.engine.cache import KVCache

Views = tuple[list[Tensor], list[Tensor]]


class StaticKVCache(KVCache):
    """A cache whose rows hold `capacity` tokens each, and up to `padding` positions of padding after them.

    A request that needs more than that makes the rows grow, as in any cache; functions made for the old memory are then
    made anew.

    Args:
        num_layers, max_rows, capacity: as in `KVCache`.
        padding: further positions of a row.
        keep: method that takes the cache when it is handed back; held by a weak reference.
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
        self.made: dict[object, object] = {}  # functions made for this memory
        self._views: dict[tuple[int, int], Views] = {}
        self._seen: Tensor | None = None

    def add_row(self, capacity: int) -> int:
        """Open an empty row, as `KVCache` does, with room for the padding."""
        return super().add_row(capacity + self.padding)

    def shrink(self, *, at_once: bool = False) -> None:
        """Give nothing back: memory must not move."""

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows, and of positions of each."""
        return self.max_rows, self.capacity

    @property
    def grown(self) -> bool:
        """True if the rows have grown beyond the size they were made for."""
        return self.size != self._asked

    def hand_back(self) -> None:
        """Empty the cache for the next user of its size; its owner must not use it any more."""
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
        """Drop views and functions made for memory that has been replaced."""
        if self._stores[0].keys is not self._seen:
            self._seen = self._stores[0].keys
            self._views.clear()
            self.made.clear()


def hand_back(cache: KVCache) -> None:
    """Give up a cache that its owner does not use any more: functions made for its memory serve the next user."""
    if isinstance(cache, StaticKVCache):
        cache.hand_back()
