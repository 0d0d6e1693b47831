"""Drafts as plain data, for a drafter that lives in another process."""

import numpy as np
import torch

from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree

PackedDraft = tuple[
    tuple[int, ...], tuple[int, ...], "np.ndarray | None", tuple[int, ...], bool, tuple[float, ...]
]


def pack_draft(draft: Draft) -> PackedDraft:
    """A draft as tuples and one numpy array: torch would pass tensors by shared memory that outlives a crash."""
    tree = draft.tree
    dists = None if tree.dists is None else tree.dists.cpu().numpy()
    return tree.tokens, tree.parents, dists, tree.drawn_from, tree.independent, draft.reach


def unpack_draft(packed: PackedDraft) -> Draft:
    """The inverse of `pack_draft`."""
    tokens, parents, dists, drawn_from, independent, reach = packed
    rows = None if dists is None else torch.from_numpy(dists)
    return Draft(DraftTree(tokens, parents, rows, drawn_from, independent), reach)
