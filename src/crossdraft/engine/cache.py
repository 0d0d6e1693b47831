"""The key-value cache: preallocated rows of their own lengths, written in place.

Hugging Face's growing cache concatenates at every step, a fifth of a small model's decode time. Here a pass writes
its keys and values after each row's last committed token, and `keep` compacts an accepted path: only accepted tokens
are copied. One row is one request; rows are packed (0 … rows-1), so that a batched pass reads a plain slice.

Only this module changes a cache, as transformers' own caches cannot roll back (5.x): `crop` takes negative counts only,
sliding layers do not crop, and static caches have no rollback at all.
"""

# pyright: reportIncompatibleVariableOverride=false

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import proxy

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from crossdraft.engine.devices import to_device
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

GROW = 64  # capacity is rounded up to this, so that joining rows rarely reallocate
SHRINK = 4  # memory for more than this many times the rows, or positions, in use is given back
State = tuple[Tensor, ...]  # of a recurrent layer and a row: the last inputs of a convolution, and perhaps a memory


def _whole_steps(positions: int) -> int:
    return -(-positions // GROW) * GROW


class PassWindow(NamedTuple):
    """The place where a pass writes keys and values.

    Args:
        rows: consecutive rows of the cache.
        places: positions that are written: the same for all rows, or for each row its own: the numbers [B, 1] of the
            rows, counted from the first of these, and positions [B, n].
        end: number of positions that the pass may attend to.
    """

    rows: slice
    places: slice | tuple[Tensor, Tensor]
    end: int


class _Layer(CacheLayerMixin):
    """One model layer's keys and values, [rows, heads, capacity, head_dim], seen through the current window."""

    is_sliding = False
    is_compileable = False
    keys: Tensor  # optional upstream; here the first pass sets both before any read
    values: Tensor

    def __init__(self, owner: "KVCache") -> None:
        super().__init__()
        # Weak: a reference cycle would keep both, with all their memory, until the next full collection, and every
        # prompt is read into a cache of its own.
        self.owner = proxy(owner)

    def resized(self, rows: int, positions: int, count: int) -> tuple[Tensor, Tensor]:
        """New keys and values of `rows` rows and `positions` positions, with this layer's first `count` positions."""
        keys, values = self._zeros(self.keys, rows, positions), self._zeros(self.values, rows, positions)
        kept = min(rows, self.owner.rows)
        keys[:kept, :, :count] = self.keys[:kept, :, :count]
        values[:kept, :, :count] = self.values[:kept, :, :count]
        return keys, values

    def put(self, keys: Tensor, values: Tensor) -> None:
        """Use these tensors as the layer's keys and values."""
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        size = self.owner.allocated_rows, self.owner.allocated
        self.put(self._zeros(key_states, *size), self._zeros(value_states, *size))

    def forget(self) -> None:
        """Give the layer's memory back."""
        self.is_initialized = False
        self.keys = self.values = torch.empty(0)

    def _zeros(self, like: Tensor, rows: int, positions: int) -> Tensor:
        return like.new_zeros(rows, like.shape[1], positions, like.shape[-1])

    def update(self, key_states: Tensor, value_states: Tensor, *args: object) -> tuple[Tensor, Tensor]:
        """Write [B, H, n, D] in the window; returns all keys and values that the pass may attend to."""
        return self.write(self.owner.window, key_states, value_states)

    def write(self, window: PassWindow, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """`update` for one of several windows of a pass."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, index, end = window
        keys, values = self.keys[rows], self.values[rows]
        if isinstance(index, slice):
            keys[:, :, index] = key_states
            values[:, :, index] = value_states
        else:
            own, at = (one.to(keys.device) for one in index)  # a model's layers may be on several
            # `scatter_` takes ten times as long and more in bfloat16 on a CPU.
            keys.transpose(1, 2)[own, at] = key_states.transpose(1, 2)
            values.transpose(1, 2)[own, at] = value_states.transpose(1, 2)
        return keys[:, :, :end], values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        rows = self.owner.window[0]
        return max(self.owner.lengths[rows], default=0)

    def get_max_length(self) -> int:
        return -1


@dataclass(frozen=True)
class KVSpan:
    """Keys and values of consecutive tokens, copied out of a row.

    Args:
        layers: keys and values, [heads, n, head_dim] each, of each layer that has its own.
        states: of each recurrent layer, after the last of the tokens; empty = not known; `None` = there are none.
    """

    layers: Mapping[int, tuple[Tensor, Tensor]]
    states: Mapping[int, State] | None = None

    def __len__(self) -> int:
        return next(iter(self.layers.values()))[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all keys, values and states."""
        states = sum(one.nbytes for state in (self.states or {}).values() for one in state)
        return states + sum(keys.nbytes + values.nbytes for keys, values in self.layers.values())

    def ends_known(self, count: int) -> bool:
        """True if a row may go on after the first `count` tokens: a state is known at the span's end, if at all."""
        return self.states is None or (bool(self.states) and count == len(self))

    def part(self, start: int, stop: int) -> "KVSpan":
        """A copy of these tokens' keys and values, with the states at the span's end alone."""
        kept = {at: (k[:, start:stop].clone(), v[:, start:stop].clone()) for at, (k, v) in self.layers.items()}
        return KVSpan(kept, self.states if self.states is None or stop == len(self) else {})


@dataclass(frozen=True)
class KVPrefix:
    """The beginning of a prompt, as it was read before.

    Args:
        parts: spans of keys and values in order, each with the number of its first tokens that belong to the prefix.
        hidden: features [n, h] of captured layers, for each part.
    """

    parts: tuple[tuple[KVSpan, int], ...] = ()
    hidden: tuple[Mapping[int, Tensor], ...] = ()

    def __len__(self) -> int:
        return sum(count for _, count in self.parts)

    def first(self, length: int) -> "KVPrefix":
        """The prefix's first `length` tokens; with states, the most of them that end where these are known."""
        parts: list[tuple[KVSpan, int]] = []
        for span, count in self.parts:
            if (taken := min(count, length - sum(n for _, n in parts))) > 0:
                parts.append((span, taken))
        while parts and not parts[-1][0].ends_known(parts[-1][1]):
            parts.pop()
        hidden = zip(self.hidden, parts, strict=False)
        return KVPrefix(tuple(parts), tuple({layer: x[:n] for layer, x in found.items()} for found, (_, n) in hidden))


class KVCache(Cache):
    """Rows of keys and values for up to `max_rows` requests.

    Memory follows use: rows double once all are in use, or grow to an expected number. Where three quarters of them are
    unused, rows are given back after as many requests have left as there are rows, before a request that needs longer
    rows, and with the last request. The memory of long prompts is given back once rows need a quarter of it.

    `lengths[r]` counts the committed tokens of row r. A pass over n new tokens writes positions
    `lengths[r] … lengths[r]+n-1` and commits none of them: `advance` (a prefill) or `keep` (a tree) does.
    `rope_deltas[r]` is added to positions: M-RoPE models number text after a video from another start than its index.

    Layers that read another layer's keys (Gemma 4's last ones) write none, and never get memory.
    """

    def __init__(self, num_layers: int, max_rows: int = 1, capacity: int = 512) -> None:
        self.max_rows = max_rows
        self.capacity = _whole_steps(capacity)
        self.allocated = self.capacity  # positions that have memory: in a copy only those that are used
        self.allocated_rows = 1  # rows that have memory
        self._least = self.capacity
        self._expected = 0  # rows that are soon to be in use
        self._left = 0  # requests that have left since more than a quarter of the rows were in use
        self._opened: list[int] = []  # capacity that each row was opened for
        self.lengths: list[int] = []
        self.rope_deltas: list[int] = []
        self.window = PassWindow(slice(0, 0), slice(0, 0), 0)
        self._passed = False  # a pass has ended, so that every layer that keeps keys has memory
        self._stores = [_Layer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._stores))

    @property
    def _filled_stores(self) -> list[_Layer]:
        return [layer for layer in self._stores if layer.is_initialized]

    @property
    def keeps_states(self) -> bool:
        """True if some layers keep a state: then a row can go back only to where it was marked."""
        return False

    @property
    def state_bytes(self) -> int:
        """Bytes of one row's states, once the first pass has told their sizes."""
        return 0

    @property
    def rows(self) -> int:
        """Rows in use."""
        return len(self.lengths)

    def add_row(self, capacity: int) -> int:
        """Open an empty row that must be able to hold `capacity` tokens; returns its index."""
        if self.rows == self.max_rows:
            raise CrossdraftError(f"All {self.max_rows} cache rows are in use; finish a request before adding one.")
        if not self.rows and not self._passed:  # the first pass ran out of memory among the layers, or is to come
            self._forget()
        if self.rows and capacity > self.capacity:
            self.shrink(at_once=True)
        self.reserve(capacity)
        if (rows := self._rows_with_another()) != self.allocated_rows:
            self._allocate(rows, self.allocated)
        self.lengths.append(0)
        self.rope_deltas.append(0)
        self._opened.append(_whole_steps(capacity))
        return self.rows - 1

    def expect(self, rows: int) -> None:
        """Announce that `rows` rows are soon in use: when more rows need memory, all of these get it at once."""
        self._expected = rows

    def _rows_with_another(self) -> int:
        """Rows that have memory once another one is in use."""
        more = min(self.max_rows, max(2 * self.allocated_rows, self._expected))
        return more if self.rows == self.allocated_rows else self.allocated_rows

    def nbytes_with(self, capacity: int) -> int:
        """Bytes of keys, values and states once another row of `capacity` tokens is in use; 0 before the first pass."""
        positions = max(self.allocated, _whole_steps(capacity))
        return self.token_bytes * self._rows_with_another() * positions

    def reserve(self, capacity: int) -> None:
        """Grow every row to `capacity`, keeping committed tokens; if memory runs out, nothing changes."""
        if capacity <= self.capacity:
            return
        wanted = _whole_steps(capacity)
        self._allocate(self.allocated_rows, wanted)
        self.capacity = wanted

    def _allocate(self, rows: int, positions: int) -> None:
        """Give `rows` rows memory for `positions` positions."""
        filled = max(self.lengths, default=0)
        layers = self._filled_stores
        # All memory is allocated before anything changes: layers of different sizes could not be used again.
        made = [layer.resized(rows, positions, filled) for layer in layers]
        for layer, (keys, values) in zip(layers, made, strict=True):
            layer.put(keys, values)
        self.allocated_rows, self.allocated = rows, positions

    def _forget(self) -> None:
        """Give all memory back, and begin anew with rows of the first capacity."""
        for layer in self._stores:
            layer.forget()
        self.capacity = self.allocated = self._least
        self._passed = False

    def shrink(self, *, at_once: bool = False) -> None:
        """Give back unused memory, that of rows only when it was unused for long, or `at_once`.

        Nothing changes if there is no room for the copy.
        """
        if not self.rows:
            if self.allocated_rows > 1 or self.capacity > SHRINK * self._least:
                self._forget()
                self.allocated_rows = 1
            return
        rows, capacity = self.allocated_rows, self.capacity
        if not at_once:
            self._left = self._left + 1 if SHRINK * self.rows <= rows else 0
        if at_once or self._left >= rows:  # a batch that ends needs no copy of what goes with its last request
            self._left = 0
            while SHRINK * self.rows <= rows:
                rows //= 2
        if SHRINK * (wanted := max(self._least, *self._opened)) <= capacity:
            capacity = wanted
        if (rows, capacity) == (self.allocated_rows, self.capacity):
            return
        try:
            self._allocate(rows, min(self.allocated, capacity))
        except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter
            log.warning("Memory of the key-value cache could not be given back: %s", error)
        else:
            self.capacity = capacity

    def copy(self) -> "KVCache":
        """An independent cache with the same content, including the last pass's uncommitted tokens.

        The copy may grow as far as this cache, and takes memory only as it grows.
        """
        copy = self._new()
        copy.lengths, copy.rope_deltas, copy.window = [*self.lengths], [*self.rope_deltas], self.window
        copy._opened, copy._passed = [*self._opened], self._passed  # noqa: SLF001
        copy.allocated_rows, copy.allocated = self.allocated_rows, self._copied
        for own, new in zip(self._stores, copy._stores, strict=True):  # noqa: SLF001
            if own.is_initialized:
                new.put(*own.resized(copy.allocated_rows, copy.allocated, self._filled))
        return copy

    def _new(self) -> "KVCache":
        return KVCache(len(self._stores), self.max_rows, self.capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys, values and states."""
        return self.key_bytes

    @property
    def key_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._filled_stores)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values, once the first pass has told their sizes."""
        return self.key_bytes // (self.allocated_rows * self.allocated)

    @property
    def copy_bytes(self) -> int:
        """Bytes of all keys, values and states of a copy."""
        return self.key_bytes * self._copied // self.allocated + self.nbytes - self.key_bytes

    @property
    def _filled(self) -> int:
        return max(self.window[2], *self.lengths, 0)

    @property
    def _copied(self) -> int:
        """Positions of a copy: those in use, and some spare ones."""
        return min(self.capacity, _whole_steps(self._filled + GROW))

    def drop_row(self, row: int) -> int:
        """Close a row; the last row takes its index. Returns the index that the moved row had."""
        last = self.rows - 1
        if row != last:
            self._copy_row(last, row, self.lengths[last])
            self.lengths[row], self.rope_deltas[row] = self.lengths[last], self.rope_deltas[last]
            self._opened[row] = self._opened[last]
        del self.lengths[last], self.rope_deltas[last], self._opened[last]
        self.shrink()
        return last

    def span(self, row: int, start: int, stop: int) -> KVSpan:
        """A copy of the keys and values of a row's tokens `start` … `stop` - 1."""
        return KVSpan(
            {
                at: (layer.keys[row, :, start:stop].clone(), layer.values[row, :, start:stop].clone())
                for at, layer in enumerate(self._stores)
                if layer.is_initialized
            }
        )

    def row_views(self, row: int, layers: Sequence[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values [heads, n, head_dim] of some layers at a row's n tokens: views, until the next pass."""
        length, stores = self.lengths[row], self._stores
        return {at: (stores[at].keys[row, :, :length], stores[at].values[row, :, :length]) for at in layers}

    def append(self, row: int, prefix: KVPrefix) -> None:
        """Commit the tokens of a prefix after a row's tokens."""
        for span, count in prefix.parts:
            start, end = self.lengths[row], self.lengths[row] + count
            for at, (keys, values) in span.layers.items():
                layer = self._stores[at]
                if not layer.is_initialized:
                    layer.lazy_initialization(keys[None], values[None])
                layer.keys[row, :, start:end] = keys[:, :count]
                layer.values[row, :, start:end] = values[:, :count]
            self.lengths[row], self._passed = end, True

    def open_window(self, rows: slice, new_tokens: int) -> PassWindow:
        """Choose the rows, and the number of tokens, that the next pass writes; a pass may open several windows."""
        lengths = self.lengths[rows]
        end = max(lengths) + new_tokens
        if end > self.capacity:
            raise CrossdraftError(
                f"A pass needs {end} cache positions, the rows were opened for {self.capacity}; "
                "open them with room for the prompt, the answer and the largest draft tree."
            )
        if end > self.allocated:
            self._allocate(self.allocated_rows, min(self.capacity, _whole_steps(end + end // 8)))
        index: slice | tuple[Tensor, Tensor] = slice(lengths[0], lengths[0] + new_tokens)
        if any(length != lengths[0] for length in lengths):
            starts = self._sent(lengths)[:, None]
            own = torch.arange(len(lengths), device=starts.device)[:, None]
            index = own, starts + torch.arange(new_tokens, device=starts.device)
        self.window = PassWindow(rows, index, end)
        return self.window

    def advance(self, row: int, count: int) -> None:
        """Commit the next `count` tokens of a row, in the order in which they were written."""
        self.lengths[row] += count
        self._passed = True

    def settle(self) -> None:
        """Begin a pass: what the last one left is committed as far as its tokens were, and else dropped."""

    def mark(self, row: int) -> None:
        """Let a row that keeps states be truncated to its length of now; the first and the last mark of a row count."""

    def truncate(self, row: int, length: int) -> int:
        """Forget what follows the first `length` tokens of a row; returns its length, less if it keeps states."""
        if length > self.lengths[row]:
            raise CrossdraftError(f"Row {row} holds {self.lengths[row]} tokens and cannot be cut to {length}.")
        self.lengths[row] = length
        return length

    def keep(self, row: int, path: Sequence[int]) -> None:
        """Commit an accepted path: tree nodes (offsets after the row's length) become its next tokens."""
        start, count = self.lengths[row], len(path)
        if list(path) != list(range(count)):  # a chain's prefix already lies where it belongs
            source = self._sent([start + node for node in path])
            for layer in self._filled_stores:
                source = source.to(layer.keys.device)
                for store in (layer.keys, layer.values):
                    store[row, :, start : start + count] = store[row].index_select(1, source)
        self.lengths[row] += count

    def first(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` keys and values of a layer in the window's rows, for passes that add none to it."""
        rows, store = self.window[0], self._stores[layer]
        return store.keys[rows, :, :count], store.values[rows, :, :count]

    def _sent(self, positions: Sequence[int]) -> Tensor:
        """Positions as indexes on the device of the keys."""
        indexes = torch.tensor(positions)
        filled = self._filled_stores
        return to_device(indexes, filled[0].keys.device) if filled else indexes

    def _copy_row(self, source: int, target: int, length: int) -> None:
        for layer in self._filled_stores:
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]
