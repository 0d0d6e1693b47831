"""A prompt read into a new row, for those who drive a target without a decode loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.passes import EMPTY, PassRow, TargetOut
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

NO_PREFIX = KVPrefix()


@dataclass(frozen=True)
class Prefill:
    """A prompt that was read.

    Args:
        row: of the cache, where its keys and values are.
        out: what the last pass returned, over the prompt's last piece and the tree.
        front: of each layer asked for, [n, h] features of all tokens in front of that piece.
    """

    row: int
    out: TargetOut
    front: Mapping[int, Tensor]


@torch.inference_mode()
def prefill(
    target: Target,
    cache: KVCache,
    prompt: Prompt,
    encoded: Encoded | None,
    capacity: int,
    tree: DraftTree = EMPTY,
    *,
    capture: Sequence[int] = (),
    front_capture: Sequence[int] = (),
    prefix: KVPrefix = NO_PREFIX,
) -> Prefill:
    """Extend a new row by a prompt.

    Args:
        target: who reads it.
        cache: gets the row; loses it again if anything fails.
        prompt, encoded: what is read; features as `Target.encode` returns them.
        capacity: tokens that the row must be able to hold.
        tree: a draft tree behind the prompt.
        capture: hidden layers wanted of the last piece and the tree.
        front_capture: those wanted of what is in front, the prefix included.
        prefix: what need not be read.
    """
    whole = not (len(tree) or capture or front_capture)
    chunks, delta = target.chunks(prompt, encoded, len(prefix), whole=whole)
    row = cache.add_row(capacity)
    cache.rope_deltas[row] = delta
    found = [*prefix.hidden]
    try:
        cache.append(row, prefix)
        for chunk in chunks[:-1]:
            out = target.extend(cache, [PassRow(row, chunk, capture=tuple(front_capture))])
            found.append(dict(zip(front_capture, out.hidden[0], strict=True)))
        out = target.extend(cache, [PassRow(row, chunks[-1], tree, capture=tuple(capture))])
    except BaseException:
        cache.drop_row(row)
        raise
    return Prefill(row, out, {layer: torch.cat([part[layer] for part in found]) for layer in front_capture if found})
