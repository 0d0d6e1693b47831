"""A pass of the target: the tokens of several rows, one after another without padding, and their outputs.

A row of a pass has pending tokens (a prompt, a part of one, or the last committed token alone), which a draft tree may
follow. Rows that attend in one call are a segment: consecutive rows of the cache with a single pending token each, or
one row with several.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.cache import KVCache, PassWindow
from crossdraft.engine.clock import Mark
from crossdraft.engine.devices import entry_device, to_device
from crossdraft.engine.prompt import Encoded
from crossdraft.engine.recurrent.cache import Paths, StateCache
from crossdraft.engine.traits import KNOWN_LAYERS, STATE_LAYERS, Traits, detect_traits
from crossdraft.engine.tree import DraftTree

EMPTY = DraftTree.empty()
PassResult = tuple[Tensor, Callable[[int], Tensor]]
"""Logits [W, V] of the tokens that are answered, and a function from a hidden layer's index to its states [N, h]."""
Masks = Tensor | dict[str, Tensor | None] | None  # one for all layers, or for each type of layer


@dataclass(frozen=True)
class Chunk:
    """Committed tokens that are not in the cache yet; the last one is the root of the row's tree.

    Args:
        tokens: [m] ids, m ≥ 1.
        positions: [m] or [axes, m] positions; `None` = count on from the row's length.
        encoded: visual features whose placeholders stand in `tokens`.
        skip_logits: true if no logits are wanted, as another chunk follows.
        images: [m] number of a token's image, -1 = none, for models in which tokens of one image see each other.
        routes: further inputs [m] of the tokens, by which visual ones get experts of their own.
    """

    tokens: Tensor
    positions: Tensor | None = None
    encoded: Encoded | None = None
    skip_logits: bool = False
    images: Tensor | None = None
    routes: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class PassRow:
    """A row of a pass.

    Args:
        index: index of the row in the cache.
        chunk: pending tokens of the row.
        tree: the draft tree after them.
        capture: hidden layers wanted: indexes into `hidden_states` (0 = embeddings, -1 = after the final norm).
    """

    index: int
    chunk: Chunk
    tree: DraftTree = EMPTY
    capture: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.chunk.tokens) + len(self.tree)

    @property
    def decodes(self) -> bool:
        """True if the only pending token is the root, so that all tokens of the row are answered."""
        return len(self.chunk.tokens) == 1 and not self.chunk.skip_logits and not self.chunk.encoded

    @property
    def answers(self) -> int:
        """Number of the row's last tokens whose logits are wanted: the root and the nodes."""
        return 0 if self.chunk.skip_logits else 1 + len(self.tree)


@dataclass(frozen=True)
class TargetOut:
    """Output of one pass, row by row.

    Args:
        logits: [1 + n, V] at the root and at every node; [0, V] after a chunk that skips them.
        hidden: for each captured layer [m + n, h], at the chunk's tokens and at every node.
        began, done: marks in the device's work where the model's own forward begins and ends.
        width: mean number of tokens of a row.

    The pass is launched, and may not be done yet: to read its time, or act on its end, wait for `done`.
    """

    logits: list[Tensor]
    hidden: list[tuple[Tensor, ...]]
    began: Mark
    done: Mark
    width: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of the model's own forward on its device, without the adapter's work; waits for its end."""
        return self.done.wait() - self.began.wait()


@dataclass(frozen=True)
class Segment:
    """Rows of a pass that attend in one call, padded to one width for that alone.

    Args:
        rows: one or more rows.
        first: index of their first token among those of the pass.
        width: tokens of the widest row, or more.
        window: place in the cache of their keys and values.
        mask: [B, 1, width, keys], true = may attend; `None` = each token attends to all up to itself; for some models
            one mask for each type of layer.
        real: [m] indexes of the rows' tokens after padding to one width; `None` if none is padded.
    """

    rows: tuple[PassRow, ...]
    first: int
    width: int
    window: PassWindow
    mask: Masks = None
    real: Tensor | None = None

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each row."""
        return [len(row) for row in self.rows]

    @cached_property
    def tokens(self) -> slice:
        """Slice of the segment's tokens among those of the pass."""
        return slice(self.first, self.first + sum(self.sizes))

    def padded(self, states: Tensor) -> Tensor:
        """[m, ...] of the segment's tokens -> [B, width, ...], zeros in the padding."""
        shape = (len(self.rows), self.width, *states.shape[1:])
        if self.real is not None:
            wide = states.new_zeros(shape[0] * shape[1], *shape[2:])
            states = wide.index_copy_(0, self.real, states)
        return states.view(shape)

    def packed(self, states: Tensor) -> Tensor:
        """[B, width, ...] -> [m, ...], without padding."""
        flat = states.reshape(-1, *states.shape[2:])
        return flat if self.real is None else flat.index_select(0, self.real)


@dataclass(frozen=True)
class Pass:
    """One pass, as executors take it.

    Args:
        ids: [N] token ids of all rows, on the target's device.
        positions: [N] or [axes, N].
        segments: segments of these tokens, in their order.
        embeds: [N, h] input embeddings with visual features in their places; `None` = the embeddings of the ids.
    """

    ids: Tensor
    positions: Tensor
    segments: tuple[Segment, ...]
    embeds: Tensor | None = None

    @cached_property
    def rows(self) -> list[PassRow]:
        """All rows, in the order of their tokens."""
        return [row for segment in self.segments for row in segment.rows]

    @cached_property
    def answered(self) -> Tensor | None:
        """[W] tokens whose logits are wanted; `None` = all."""
        rows = self.rows
        if all(row.answers == len(row) for row in rows):
            return None
        ends = accumulate(map(len, rows))
        wanted = [torch.arange(end - row.answers, end) for end, row in zip(ends, rows, strict=True)]
        return to_device(torch.cat(wanted), self.ids.device)

    def part(self, segment: Segment) -> "Pass":
        """A pass of this segment alone."""
        tokens = segment.tokens
        embeds = None if self.embeds is None else self.embeds[tokens]
        return Pass(self.ids[tokens], self.positions[..., tokens], (replace(segment, first=0),), embeds)

    def by_row(self, logits: Tensor, layer: "Callable[[int], Tensor]") -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
        """Split the answered tokens' logits [W, V] and the captured layers, `layer` [N, h], by row; see `TargetOut`."""
        hidden: list[tuple[Tensor, ...]] = []
        for row, end in zip(self.rows, accumulate(map(len, self.rows)), strict=True):
            hidden.append(tuple(layer(one)[end - len(row) : end] for one in row.capture))
        return list(logits.split([row.answers for row in self.rows])), hidden


class Executor(Protocol):
    """Runs passes over a model: `hf` (any model's own forward), `fast` (known decoder layers), `graphs` (captured)."""

    def __call__(self, one: Pass, cache: KVCache) -> PassResult:
        """Run a pass whose windows are open; its keys and values stay uncommitted in the cache."""
        ...


def real_tokens(sizes: Sequence[int], width: int) -> Tensor | None:
    """[m] indexes of the tokens of rows of these sizes after padding to one width; `None` if none is padded.

    >>> real_tokens([1, 2], 3)
    tensor([0, 3, 4])
    """
    if min(sizes) == width:
        return None
    return torch.cat([torch.arange(row * width, row * width + size) for row, size in enumerate(sizes)])


def segments_of(rows: Sequence[PassRow]) -> Iterator[tuple[PassRow, ...]]:
    """Split rows into those that attend in one call."""
    run: list[PassRow] = []
    for row in rows:
        if run and not (row.decodes and run[-1].decodes and row.index == run[-1].index + 1):
            yield tuple(run)
            run = []
        run.append(row)
    yield tuple(run)


@dataclass(frozen=True)
class PassBuilder:
    """Ids, positions and masks of passes, as a model takes them.

    Args:
        model: in eval mode.
        device: device of its inputs.
        traits: peculiarities of the model.
    """

    model: PreTrainedModel
    device: torch.device
    traits: Traits

    @classmethod
    def of(cls, model: PreTrainedModel) -> "PassBuilder":
        """The builder for a model."""
        return cls(model, entry_device(model), detect_traits(model))

    def build(self, cache: KVCache, rows: Sequence[PassRow], width: int = 0, keys: int = 0) -> Pass:
        """Build the pass over these rows, and open its windows.

        Args:
            cache: cache of the rows.
            rows: the rows, in any order.
            width, keys: for a pass of one segment, least numbers of tokens a row and of keys that it attends to.
        """
        ids: list[int] = []
        positions: list[Tensor] = []
        segments: list[Segment] = []
        cache.settle()
        for part in segments_of(rows):
            wide = max(width, *map(len, part))
            window = cache.open_window(slice(part[0].index, part[-1].index + 1), wide)
            mask = self.masks(cache, part, wide, max(keys, window.end))
            if isinstance(cache, StateCache):
                paths = self.paths(part, wide)
                if self.traits.relative:
                    paths = replace(paths, places=self.places(cache, part, wide, max(keys, window.end)))
                cache.enter(window, paths)
            real = real_tokens([len(row) for row in part], wide)
            real = None if real is None else to_device(real, self.device)
            segments.append(Segment(part, len(ids), wide, window, mask, real))
            for row in part:
                ids += [*row.chunk.tokens.tolist(), *row.tree.tokens]
                positions.append(self._positions(cache, row))
        table = torch.cat([torch.tensor(ids)[None], torch.cat(positions, -1).view(-1, len(ids))])
        sent = to_device(table, self.device)
        return Pass(sent[0], sent[1:] if self.traits.mrope else sent[1], tuple(segments))

    def depths(self, tree: DraftTree) -> Sequence[int]:
        """The depth of each node, 1 = below the root."""
        return tree.depths

    def _positions(self, cache: KVCache, row: PassRow) -> Tensor:
        """[n] or [axes, n] positions of a row's tokens."""
        m, start = len(row.chunk.tokens), cache.lengths[row.index] + cache.rope_deltas[row.index]
        nodes = [start + m - 1 + depth for depth in self.depths(row.tree)]
        found = torch.tensor([*range(start, start + m), *nodes])
        if self.traits.mrope:
            found = found.expand(self.traits.mrope, -1).contiguous()
        if row.chunk.positions is not None:
            found[..., :m] = row.chunk.positions
        return found

    def paths(self, rows: Sequence[PassRow], width: int) -> Paths:
        """The paths of a segment's tokens, for layers that keep a state."""
        pending, trees = [len(row.chunk.tokens) for row in rows], [row.tree for row in rows]
        mixer: Any = next(iter(self.traits.mixers.values()))
        return Paths.of(pending, trees, width, mixer.conv_kernel_size, self.device)

    def masks(self, cache: KVCache, rows: Sequence[PassRow], width: int, keys: int) -> Masks:
        """The mask of a segment; one for each type of layer where some types see less, or keep a state."""
        masks = self._masks(cache, rows, width, keys)
        if not self.traits.mixers:
            return masks
        if masks is None:  # such a model would make masks of its own
            masks = self._explicit(cache, rows, width, keys)
        known: dict[str, Tensor | None] = masks if isinstance(masks, dict) else dict.fromkeys(KNOWN_LAYERS, masks)
        return {**known, **dict.fromkeys(STATE_LAYERS)}

    def _masks(self, cache: KVCache, rows: Sequence[PassRow], width: int, keys: int) -> Masks:
        traits, blocks = self.traits, self.traits.blocks
        near = keys > (traits.window or traits.span or keys)
        shown = blocks is not None and any(row.chunk.images is not None for row in rows)
        if traits.limited is None or not (near or shown):
            return self.mask(cache, rows, width, keys)
        masks = dict.fromkeys(("full_attention", traits.limited), self._explicit(cache, rows, width, keys))
        if blocks is not None and shown and (causal := masks.keys() - blocks.layers):  # these read images causally
            plain = [replace(row, chunk=replace(row.chunk, images=None)) for row in rows]
            masks |= dict.fromkeys(causal, self._explicit(cache, plain, width, keys))
        if near:
            seen, own = self.near(cache, rows, width, keys), masks[traits.limited]
            masks[traits.limited] = seen if own is None else own & seen
        return masks[traits.limited] if traits.all_slide else masks

    def _explicit(self, cache: KVCache, rows: Sequence[PassRow], width: int, keys: int) -> Tensor | None:
        """`mask`, with a mask for plain causal attention, too; `None` = a token sees all."""
        mask = self.mask(cache, rows, width, keys)
        if mask is not None or width == 1:
            return mask
        return torch.ones(width, keys, dtype=torch.bool, device=self.device).tril()[None, None]

    def places(self, cache: KVCache, rows: Sequence[PassRow], width: int, keys: int) -> tuple[Tensor, Tensor]:
        """[B, width] and [B, keys] places of a segment's tokens, and of all keys, on their own paths."""
        own, index = [], []
        for row in rows:
            length, m, n = cache.lengths[row.index], len(row.chunk.tokens), len(row.tree)
            nodes = [length + m - 1 + depth for depth in self.depths(row.tree)]
            # Padding, too, sees at least itself: a query that sees nothing gives NaN.
            own.append([*range(length, length + m), *nodes, *range(length + m + n, length + width)])
            index.append([*range(length), *own[-1], *range(length + width, keys)])
        return to_device(torch.tensor(own), self.device), to_device(torch.tensor(index), self.device)

    def near(self, cache: KVCache, rows: Sequence[PassRow], width: int, keys: int) -> Tensor:
        """[B, 1, width, keys], True = within a layer's window, or its chunk, counted along a node's own path."""
        queries, seen = self.places(cache, rows, width, keys)
        seen, queries = seen[:, None, None], queries[:, None, :, None]
        if (span := self.traits.span) is not None:
            return seen // span == queries // span
        near = seen > queries - (self.traits.window or keys)
        if self.traits.blocks is not None and self.traits.blocks.beyond:
            self._show_images(near, cache, rows)
        return near

    def _show_images(self, mask: Tensor, cache: KVCache, rows: Sequence[PassRow]) -> None:
        """Let the tokens of an image see each other in a mask [B, 1, width, keys]."""
        for number, row in enumerate(rows):
            if (images := row.chunk.images) is not None:
                first, end = cache.lengths[row.index], cache.lengths[row.index] + len(images)
                whole = (images[:, None] == images) & (images >= 0)
                mask[number, 0, : len(images), first:end] |= to_device(whole, self.device)

    def mask(self, cache: KVCache, rows: Sequence[PassRow], width: int, keys: int) -> Tensor | None:
        """[B, 1, width, keys], True = may attend. `None` where plain causal attention is the same."""
        lengths = [cache.lengths[row.index] for row in rows]
        level = len(set(lengths)) == 1
        plain = level and all(row.tree.is_chain and row.chunk.images is None for row in rows)
        if plain and (width == 1 or lengths[0] == 0):
            return None
        past: int | Tensor = lengths[0]
        if not level:
            past = to_device(torch.tensor(lengths), self.device).view(-1, 1, 1, 1)
        # Attention up to itself is right for a chunk and for a chain; the padding after them is not seen.
        queries = torch.arange(width, device=self.device)[:, None]
        causal = torch.arange(keys, device=self.device) <= past + queries
        mask = causal.expand(len(rows), 1, width, keys).contiguous()
        for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            m, n = len(row.chunk.tokens), len(row.tree)
            if not row.tree.is_chain:
                first = length + m
                mask[number, 0, m : m + n, first : first + n] = to_device(row.tree.visible, self.device)
        self._show_images(mask, cache, rows)
        return mask
