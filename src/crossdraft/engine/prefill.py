"""Prefill of a prompt into a new row, for callers that use a target without a decode loop."""

from collections.abc import Sequence

import torch

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.passes import EMPTY, PassRow, TargetOut
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

NO_PREFIX = KVPrefix()


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
    prefix: KVPrefix = NO_PREFIX,
) -> TargetOut:
    """Extend a new row by a prompt; returns the outputs of the last pass, over the prompt's last piece and the tree.

    Args:
        target: the target that reads the prompt.
        cache: gets the row; loses it again if anything fails.
        prompt, encoded: the prompt, and its visual features as `Target.encode` returns them.
        capacity: tokens that the row must be able to hold.
        tree: a draft tree behind the prompt.
        capture: hidden layers wanted of the last piece and the tree.
        prefix: the prompt's cached beginning, which is not read again.
    """
    chunks, delta = target.chunks(prompt, encoded, len(prefix), whole=not (len(tree) or capture))
    row = cache.add_row(capacity)
    cache.rope_deltas[row] = delta
    try:
        cache.append(row, prefix)
        for chunk in chunks[:-1]:
            target.extend(cache, [PassRow(row, chunk)])
        return target.extend(cache, [PassRow(row, chunks[-1], tree, capture=tuple(capture))])
    except BaseException:
        cache.drop_row(row)
        raise
