"""Inputs and outputs of a pass of the target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.clock import Mark
from crossdraft.engine.drafter import PromptFeatures
from crossdraft.engine.prompt import Encoded
from crossdraft.engine.tree import DraftTree


@dataclass(frozen=True)
class Chunk:
    """Committed tokens that are not in the cache yet; the last one is the root of the row's tree.

    Args:
        tokens: [m] ids, m ≥ 1.
        positions: [m] or [3, m] positions; `None` = count on from the row's length.
        encoded: visual features whose placeholders stand in `tokens`.
        skip_logits: nobody will ask for logits after it: another chunk follows.
        images: [m] the number of the image that a token belongs to, -1 = none, where those of one see each other.
    """

    tokens: Tensor
    positions: Tensor | None = None
    encoded: Encoded | None = None
    skip_logits: bool = False
    images: Tensor | None = None


Masks = Tensor | dict[str, Tensor | None] | None  # one for all layers, or for each type of layer
RideAlong = tuple[DraftTree, Tensor | None]
NO_TREE: RideAlong = (DraftTree.empty(), None)
NO_PREFIX = KVPrefix()


@dataclass(frozen=True)
class TargetOut:
    """Output of one pass, row by row.

    Args:
        logits: [1 + n, V] at the root and at every node; [0, V] after a chunk that skips them.
        hidden: for each captured layer [m + n, h], at the chunk's tokens and at every node.
        began, done: where the model's own forward begins and ends in the device's work.
        width: tokens of a row that were computed, padding included; their mean where it is left out.

    The pass is launched, and may not be done yet: on a GPU whoever reads a time, or acts on its end, waits for `done`.
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
class Prefill:
    """A prompt that was read.

    Args:
        row: of the cache, where its keys and values are.
        tokens: its ids.
        prefix: its beginning, which was known.
        pieces: the rest, as `Target.chunks` split it; the last one carried the tree, if one was to ride along.
        front: what the passes over the pieces before it returned, one row each.
        out: what the last pass returned.
        cut: tokens up to the last visual one; 0 if none is, or no text follows.
    """

    row: int
    tokens: tuple[int, ...]
    prefix: KVPrefix
    pieces: tuple[Chunk, ...]
    front: list[TargetOut]
    out: TargetOut
    cut: int

    @property
    def last(self) -> int:
        """Tokens of the last piece."""
        return len(self.pieces[-1].tokens)

    def front_hidden(self, layers: Sequence[int]) -> dict[int, Tensor]:
        """[n, h] features of each of these layers, of all tokens before the last piece; they were captured."""
        found = [*self.prefix.hidden, *(dict(zip(layers, out.hidden[0], strict=True)) for out in self.front)]
        return {layer: torch.cat([part[layer] for part in found]) for layer in layers if found}


def prompt_features(read: Prefill, layers: Sequence[int]) -> PromptFeatures:
    """A prompt for drafters that look into it: its last piece, and these hidden layers of those in front."""
    cut = len(read.tokens) - read.last
    return PromptFeatures(read.tokens[cut:], read.tokens[:cut], read.front_hidden(layers))


@dataclass(frozen=True)
class PrefillChunk:
    """A piece of a prompt that may share a pass with other rows.

    Args:
        cache: where it is read, into row 0.
        chunk: the piece.
        capture: hidden layers wanted of it.
    """

    cache: KVCache
    chunk: Chunk
    capture: Sequence[int] = ()


def by_row(
    cache: KVCache,
    rows: slice,
    chunks: Sequence[Chunk],
    trees: Sequence[DraftTree],
    scores: Tensor,
    skipped: int,
    states: Any,
    capture: Sequence[int],
) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
    """Logits and hidden layers of each row of a pass, whose chunks are committed; see `TargetOut`.

    `scores` [B, k, V] are those of all tokens but the first `skipped`.
    """
    logits, hidden = [], []
    for row, (chunk, tree) in enumerate(zip(chunks, trees, strict=True)):
        m = len(chunk.tokens)
        cache.advance(rows.start + row, m)
        first = m - 1 - skipped  # the root's row among them
        logits.append(scores[row, first : first + 1 + len(tree)])
        hidden.append(tuple(states[layer][row, : m + len(tree)] for layer in capture))
    return logits, hidden


def real_tokens(sizes: Sequence[int], width: int) -> Tensor | None:
    """[m] where the tokens of rows of these sizes stand among all that are padded to one width; `None` if none is.

    >>> real_tokens([1, 2], 3)
    tensor([0, 3, 4])
    """
    if min(sizes) == width:
        return None
    return torch.cat([torch.arange(row * width, row * width + size) for row, size in enumerate(sizes)])


def by_size(
    cache: KVCache,
    rows: slice,
    chunks: Sequence[Chunk],
    sizes: list[int],
    scores: Tensor,
    states: Sequence[Tensor],
    capture: Sequence[int],
) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
    """As `by_row`, of scores [1, tokens, V] and states [1, tokens, h] in which no row is padded beyond its size."""
    logits = [one[len(chunk.tokens) - 1 :] for one, chunk in zip(scores[0].split(sizes), chunks, strict=True)]
    layers = [states[layer][0].split(sizes) for layer in capture]
    for row, chunk in enumerate(chunks, rows.start):
        cache.advance(row, len(chunk.tokens))
    return logits, [tuple(layer[row] for layer in layers) for row in range(len(sizes))]
