"""Cache of a model with recurrent layers: some layers keep keys and values, the others a state for each row.

A state sums up all tokens read, so that none can be taken back. So a pass changes no state: it leaves what the state
behind any of its paths is made of (`rules`), for each node some numbers, not a state. `advance` and `keep` note
the last committed token; before the next pass, the path that ends there is committed by one product.

A row can go back only to where `mark` was called, and its beginning can be used by another row only up to a place where
a span of it ended.
"""

# pyright: reportIncompatibleVariableOverride=false

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from weakref import proxy

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache, KVPrefix, KVSpan, PassWindow, State
from crossdraft.engine.devices import to_device
from crossdraft.engine.recurrent.rules import (
    PIECE,
    Left,
    ReadTree,
    committed,
    convolve,
    read_text,
    read_tree,
    tap_table,
)
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError


@dataclass(frozen=True)
class Paths:
    """The paths of the tokens of consecutive rows of a pass, padded to n.

    Args:
        head: number of first tokens that are read as text, as they are many; 0, or all pending ones of a single row.
        seen: [B, n - head, n - head] true where the second token is the first, or one that it follows.
        taps: [B, n, K] see `tap_table`.
        places: [B, n] and [B, keys] places of the tokens, and of all keys, on their paths; for `relative_attention`.
    """

    head: int
    seen: Tensor
    taps: Tensor
    places: tuple[Tensor, Tensor] | tuple[()] = ()

    @classmethod
    def of(
        cls, pending: Sequence[int], trees: Sequence[DraftTree], width: int, reach: int, device: torch.device
    ) -> "Paths":
        """The paths of rows with these numbers of pending tokens, the trees behind them and padding up to `width`.

        Args:
            reach: K, inputs that a convolution sees.
        """
        head = pending[0] if len(pending) == 1 and pending[0] > PIECE else 0
        parents = torch.full((len(pending), width), -1)  # padding follows nothing, and nothing follows it
        seen = torch.eye(width - head, dtype=torch.bool).repeat(len(pending), 1, 1)
        for row, (m, tree) in enumerate(zip(pending, trees, strict=True)):
            parents[row, :m] = torch.arange(-1, m - 1)
            above = torch.tensor(tree.parents, dtype=torch.long)
            parents[row, m : m + len(tree)] = above + m
            first, end = m - head, m - head + len(tree)
            seen[row, :first, :first] = torch.ones(first, first, dtype=torch.bool).tril()
            seen[row, first:end, :first] = True
            seen[row, first:end, first:end] = tree.visible
        return cls(head, to_device(seen, device), to_device(tap_table(parents, reach), device))


@dataclass(frozen=True)
class _Left:
    """Content of a pass of which a layer's states are made, of tokens behind the first `head`.

    Args:
        inputs: [B, K - 1 + n, C] of the convolution, from the last ones before these tokens on.
        memory: [B, H, dk, dv] before these tokens; `None` = the layer keeps inputs alone.
        tree: of the memory; `None` = there are no such tokens.
    """

    inputs: Tensor
    memory: Tensor | None = None
    tree: Left | None = None


class StateLayer:
    """States of one layer: the last inputs of its convolution [rows, K - 1, C], and its memory [rows, H, dk, dv]."""

    supports_early_init = is_sliding = is_compileable = False  # as transformers asks of a cache's layers
    is_initialized = True

    def __init__(self, owner: "StateCache") -> None:
        self.owner = proxy(owner)  # weak, as in `cache._Layer`
        self.inputs: Tensor | None = None  # the first pass tells the sizes
        self.memory: Tensor | None = None
        self.left: dict[int, _Left] = {}  # by the first row of a segment

    @property
    def tensors(self) -> list[Tensor]:
        """The states that have memory."""
        return [states for states in (self.inputs, self.memory) if states is not None]

    def convolve(self, new: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, n, C] outputs of the convolution over new inputs [B, n, C]; weight and bias as in `rules.convolve`."""
        rows, paths = self.owner.window.rows, self.owner.paths
        if self.inputs is None:
            self.inputs = new.new_zeros(self.owner.allocated_rows, paths.taps.shape[-1] - 1, new.shape[-1])
        wide = torch.cat((self.inputs[rows], new), 1)
        behind = wide[:, paths.head :]
        self.left[rows.start] = _Left(behind.clone() if paths.head else behind)
        return convolve(wide, paths.taps.to(new.device), weight, bias)

    def read(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None = None) -> Tensor:
        """[B, H, n, dv] answers of the memory; arguments as in `rules.read_tree`. Called after `convolve`."""
        rows, paths = self.owner.window.rows, self.owner.paths
        if self.memory is None:
            self.memory = q.new_zeros(self.owner.allocated_rows, v.shape[1], q.shape[-1], v.shape[-1])
        memory, answers, tree, head = self.memory[rows], list[Tensor](), None, paths.head
        if head:
            given = _part(slice(head), q, k, v, decay)
            strength = None if beta is None else beta[:, :, :head]
            answer, memory = read_text(*given, memory, strength, self.owner.tree_rule)
            answers.append(answer)
        if head < v.shape[2]:
            given = _part(slice(head, None), q, k, v, decay)
            strength = None if beta is None else beta[:, :, head:]
            answer, tree = self.owner.tree_rule(*given, memory, paths.seen.to(q.device), strength)
            answers.append(answer)
        self.left[rows.start] = replace(self.left[rows.start], memory=memory, tree=tree)
        return torch.cat(answers, 2)

    def after(self, first: int, paths: Paths, chosen: Tensor, last: Tensor) -> list[Tensor]:
        """States [m, …] after the paths that end with the tokens `last` [m] of rows `chosen` [m] of a segment.

        Args:
            first: first row of the segment.
            last: index behind the first `head` tokens; -1 is the last one of these.
        """
        left = self.left[first]
        chosen, last = chosen.to(left.inputs.device), last.to(left.inputs.device)
        reach = paths.taps.shape[-1] - 1
        # The inputs before the next token are those that the last one saw, but for the oldest.
        taps = paths.taps.to(last.device)[chosen, last + paths.head] - paths.head
        states = [left.inputs[chosen[:, None], taps[:, :reach].flip(-1)]]
        if left.memory is not None:
            memory = left.memory[chosen]
            if left.tree is not None and not (paths.head and last.tolist() == [-1]):
                tree = Left(*(part[chosen] for part in left.tree))
                memory = committed(memory, tree, last, paths.seen.to(last.device)[chosen])
            states.append(memory)
        return states

    def resized(self, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """Inputs and memory of this many rows, with the content of those in use."""
        kept = min(rows, self.owner.rows)
        return _resized(self.inputs, rows, kept), _resized(self.memory, rows, kept)

    def of(self, row: int) -> State:
        """A copy of a row's state; empty before the first pass."""
        return tuple(states[row].clone() for states in self.tensors)

    def put(self, row: int, state: State) -> None:
        """Give a row a state, that of an empty row if it is empty."""
        if state and self.inputs is None:
            made = [one.new_zeros(self.owner.allocated_rows, *one.shape) for one in state]
            self.inputs, self.memory = made[0], made[1] if len(made) > 1 else None
        for at, states in enumerate(self.tensors):
            if state:
                states[row] = state[at]
            else:
                states[row].zero_()


def _part(tokens: slice, q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return q[:, :, tokens], k[:, :, tokens], v[:, :, tokens], decay[:, :, tokens]


def _resized(states: Tensor | None, rows: int, kept: int) -> Tensor | None:
    if states is None:
        return None
    made = states.new_zeros(rows, *states.shape[1:])
    made[:kept] = states[:kept]
    return made


class StateCache(KVCache):
    """A cache in which some layers keep a state, as long for a row of one token as for any other.

    Args:
        num_layers, max_rows, capacity: as in `KVCache`.
        states: numbers of the states, as in `find_mixers`: a layer's own, or more where it keeps keys, too.
        tree_rule: `read_tree`, or another way to compute the same.
    """

    def __init__(
        self,
        num_layers: int,
        states: Collection[int],
        max_rows: int = 1,
        capacity: int = 512,
        tree_rule: ReadTree = read_tree,
    ) -> None:
        super().__init__(num_layers, max_rows, capacity)
        self.tree_rule = tree_rule
        self._states = {layer: StateLayer(self) for layer in states}
        for layer, kept in self._states.items():
            if layer < num_layers:
                self.layers[layer] = cast("Any", kept)  # transformers knows layers of other kinds, too
        self._segments: dict[int, Paths] = {}  # of the last pass, by their first rows
        self._ends: dict[int, int] = {}  # last committed token of a row, among those of the last pass
        self._pending: dict[int, int] = {}  # number of pending tokens of a row in the last pass
        # Length and states of a row at its first mark and at its last one.
        self._marks: dict[int, list[tuple[int, dict[int, State]]]] = {}

    @property
    def keeps_states(self) -> bool:
        """True: a row cannot go back to any of its tokens."""
        return True

    def state_layer(self, number: int) -> StateLayer:
        """The states of this number."""
        return self._states[number]

    @property
    def paths(self) -> Paths:
        """Paths of the tokens of the current window."""
        return self._segments[self.window.rows.start]

    def enter(self, window: PassWindow, paths: Paths) -> None:
        """Note how the tokens of a window follow one another."""
        self._segments[window.rows.start] = paths

    def advance(self, row: int, count: int) -> None:
        super().advance(row, count)
        self._pending[row], self._ends[row] = count, count - 1

    def keep(self, row: int, path: Sequence[int]) -> None:
        super().keep(row, path)
        if path:
            self._ends[row] = self._pending[row] + path[-1]

    def settle(self) -> None:
        """Commit the last pass up to each row's last committed token, and drop the rest of it."""
        for first, paths in self._segments.items():
            rows = [row for row in range(first, first + len(paths.taps)) if row in self._ends]
            if rows:
                for layer, states in self._after(first, rows):
                    for kept, made in zip(layer.tensors, states, strict=True):
                        kept[rows] = made
        self._ends.clear()
        self._segments.clear()
        for layer in self._states.values():
            layer.left.clear()

    def _after(self, first: int, rows: Sequence[int]) -> Iterator[tuple[StateLayer, list[Tensor]]]:
        """The states of each layer after the last committed token of some rows of a segment of the last pass."""
        paths = self._segments[first]
        table = torch.tensor([[row - first for row in rows], [self._ends[row] - paths.head for row in rows]])
        chosen, last = to_device(table, paths.taps.device)
        for layer in self._states.values():
            yield layer, layer.after(first, paths, chosen, last)

    def _states_of(self, row: int) -> dict[int, State]:
        """A copy of a row's states, after its last committed token."""
        if row in self._ends:
            for first, paths in self._segments.items():
                if first <= row < first + len(paths.taps):
                    made = (tuple(one[0] for one in states) for _, states in self._after(first, [row]))
                    return dict(zip(self._states, made, strict=True))
        return {at: layer.of(row) for at, layer in self._states.items()}

    def mark(self, row: int) -> None:
        self._marks[row] = [*self._marks.get(row, ())[:1], (self.lengths[row], self._states_of(row))]

    def truncate(self, row: int, length: int) -> int:
        if length == self.lengths[row]:
            return length
        marks = [one for one in self._marks.get(row, ()) if one[0] <= length]
        if not marks:
            raise CrossdraftError(
                f"Row {row} keeps states and cannot be cut to {length} tokens; mark it while it has no more than these."
            )
        (marked, states), self._marks[row] = marks[-1], marks
        self._ends.pop(row, None)
        self._put(row, states)
        return super().truncate(row, marked)

    def add_row(self, capacity: int) -> int:
        row = super().add_row(capacity)
        self._put(row, {})
        return row

    def drop_row(self, row: int) -> int:
        self.settle()
        last = super().drop_row(row)
        self._marks.pop(last, None)
        return last

    def _copy_row(self, source: int, target: int, length: int) -> None:
        super()._copy_row(source, target, length)
        self._put(target, self._states_of(source))
        self._marks.pop(target, None)
        if source in self._marks:
            self._marks[target] = self._marks[source]

    def span(self, row: int, start: int, stop: int) -> KVSpan:
        return replace(super().span(row, start, stop), states=self._states_of(row) if stop == self.lengths[row] else {})

    def append(self, row: int, prefix: KVPrefix) -> None:
        super().append(row, prefix)
        if prefix.parts:
            self._put(row, prefix.parts[-1][0].states or {})

    def _allocate(self, rows: int, positions: int) -> None:
        made = [layer.resized(rows) for layer in self._states.values()]
        super()._allocate(rows, positions)
        for layer, (inputs, memory) in zip(self._states.values(), made, strict=True):
            layer.inputs, layer.memory = inputs, memory

    def _forget(self) -> None:
        super()._forget()
        for layer in self._states.values():
            layer.inputs = layer.memory = None

    def _new(self) -> KVCache:
        return StateCache(len(self._stores), self._states, self.max_rows, self.capacity, self.tree_rule)

    def copy(self) -> "StateCache":
        made = cast("StateCache", super().copy())
        made._segments, made._marks = {**self._segments}, {**self._marks}  # noqa: SLF001
        made._ends, made._pending = {**self._ends}, {**self._pending}  # noqa: SLF001
        for own, new in zip(self._states.values(), made._states.values(), strict=True):  # noqa: SLF001
            new.inputs, new.memory = own.resized(self.allocated_rows)
            for at, left in own.left.items():  # its memory is a view, which this cache will write
                new.left[at] = replace(left, memory=None if left.memory is None else left.memory.clone())
        return made

    @property
    def state_bytes(self) -> int:
        return sum(states[0].nbytes for layer in self._states.values() for states in layer.tensors)

    @property
    def nbytes(self) -> int:
        return self.key_bytes + self.allocated_rows * self.state_bytes

    def nbytes_with(self, capacity: int) -> int:
        return super().nbytes_with(capacity) + self._rows_with_another() * self.state_bytes

    def _put(self, row: int, states: Mapping[int, State]) -> None:
        for at, layer in self._states.items():
            layer.put(row, states.get(at, ()))
