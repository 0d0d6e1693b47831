"""The target's likeliest tokens at the nodes of a verified tree, for drafters that reuse them (Luo et al. 2024)."""

from collections.abc import Collection

import torch
from torch import Tensor

from crossdraft.engine.drafter import Successors
from crossdraft.engine.tree import DraftTree

BLOCK = 128  # tokens whose greatest logit is found first


def successors_of(tree: DraftTree, logits: Tensor, count: int, reserved: Collection[int] = ()) -> Successors:
    """See `VerifyOutput.successors`.

    Args:
        tree: the verified tree of n nodes.
        logits: [1 + n, V] or more rows, at the root and at every node.
        count: number of likeliest tokens.
        reserved: ids that must never be drafted; they are left out.
    """
    paths = [(), *(tuple(tree.path_tokens(node)) for node in range(len(tree)))]
    rows = likeliest(logits[: len(paths)], count).tolist()
    return {path: [token for token in row if token not in reserved] for path, row in zip(paths, rows, strict=True)}


def likeliest(logits: Tensor, count: int) -> Tensor:
    """[n, count] ids of the greatest of each row of logits [n, V], greatest first.

    The greatest stand in the blocks with the greatest maxima, so only those are sorted: a fifth of the time of `topk`.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()  # halves are slow to compare on a CPU
    blocks, rest = divmod(logits.shape[1], BLOCK)
    if blocks <= count:
        return logits.topk(min(count, logits.shape[1])).indices
    best = logits[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).amax(-1).topk(count).indices
    ids = (best[..., None] * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(1)
    if rest:
        last = torch.arange(blocks * BLOCK, logits.shape[1], device=logits.device)
        ids = torch.cat([ids, last.expand(len(ids), -1)], 1)
    return ids.gather(1, logits.gather(1, ids).topk(count).indices)
