"""Drafts and requests as plain data, for a drafter that lives in another process."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossdraft.engine.checks import faulty
from crossdraft.engine.drafter import Draft
from crossdraft.engine.request import Request
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError


class SparseRows(NamedTuple):
    """[m, V] distributions whose entries are mostly zero, as after top-k, top-p or min-p: only the others are sent.

    Over 152,064 ids, 32 distributions are 19.5 MB; after top-k 50 they are 13 kB. The values arrive bit for bit, as
    exact rejection needs the distributions that the tokens were drawn from.

    Args:
        width: V.
        counts: [m] how many entries of each row are not zero.
        ids, values: these entries, row by row.
    """

    width: int
    counts: np.ndarray
    ids: np.ndarray
    values: np.ndarray


PackedRows = np.ndarray | SparseRows | None
PackedTensor = tuple[str, tuple[int, ...]]  # dtype, shape
PackedDraft = tuple[tuple[int, ...], tuple[int, ...], PackedRows, tuple[int, ...], Draft]
"""The tree's `tokens`, `parents`, `dists` and `drawn_from`; the rest of the draft."""


def pack_draft(draft: Draft, spans: tuple[Span, ...] = ()) -> PackedDraft:
    """Convert a draft to tuples and NumPy arrays: torch would send tensors in shared memory that outlives a crash.

    `spans`: spans of the work on this draft alone.
    """
    tree, rest = draft.tree, replace(draft, tree=DraftTree.empty(), spans=spans)
    return tree.tokens, tree.parents, pack_rows(tree), tree.drawn_from, rest


def unpack_draft(packed: PackedDraft) -> Draft:
    """Inverse of `pack_draft`; anything else gives a draft with a `fault`. The tree itself is checked by `checks`."""
    try:
        tokens, parents, dists, drawn_from, rest = packed
        spans = tuple(span for span in rest.spans if isinstance(span, Span))
        return replace(rest, tree=DraftTree(tokens, parents, unpack_rows(dists), drawn_from), spans=spans)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no draft
        return faulty(f"it cannot be read ({type(error).__name__}: {error})")


def pack_request(request: Request) -> tuple[bytes, list[memoryview]]:
    """Pickle a request without its NumPy arrays, which are returned apart and not copied: clips are megabytes.

    Plain pickle copies tensors; torch would send them through a server that only multiprocessing's children reach.

    Raises:
        CrossdraftError: something in it cannot be sent.
    """
    arrays: list[pickle.PickleBuffer] = []
    try:
        packed = pickle.dumps(request, protocol=5, buffer_callback=arrays.append)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CrossdraftError(
            f"The request cannot be sent to the drafter's process ({error}); give paths, arrays or tensors, or use the "
            "inline placement."
        ) from error
    return packed, [array.raw() for array in arrays]


def pack_tensor(tensor: Tensor | None) -> tuple[PackedTensor | None, list[memoryview]]:
    """Split a tensor into dtype and shape, and its raw values in its own precision; `None` gives no values."""
    if tensor is None:
        return None, []
    values = tensor.detach().cpu().contiguous()
    name = str(values.dtype).removeprefix("torch.")
    return (name, tuple(values.shape)), [values.flatten().view(torch.uint8).numpy().data]


def unpack_tensor(packed: PackedTensor | None, arrays: Sequence[bytearray]) -> Tensor | None:
    """The inverse of `pack_tensor`."""
    if packed is None:
        return None
    name, shape = packed
    return torch.frombuffer(arrays[0], dtype=getattr(torch, name)).view(shape)


def unpack_request(packed: bytes, arrays: Sequence[bytearray]) -> Request:
    """Inverse of `pack_request`; the request's arrays are writable."""
    return pickle.loads(packed, buffers=arrays)  # noqa: S301 - from the parent, over their own authenticated socket


def pack_rows(tree: DraftTree) -> PackedRows:
    """Pack a tree's distributions, sparse if at most a third of the entries is nonzero; rows cut off are left out."""
    if tree.dists is None:
        return None
    rows = tree.dists[: max(tree.drawn_from, default=-1) + 1].cpu()
    nonzero = rows.nonzero()
    if 3 * len(nonzero) > rows.numel():
        return rows.numpy()
    counts = torch.bincount(nonzero[:, 0], minlength=len(rows))
    values = rows[nonzero[:, 0], nonzero[:, 1]]
    return SparseRows(rows.shape[-1], counts.numpy(), nonzero[:, 1].int().numpy(), values.numpy())


def unpack_rows(packed: PackedRows) -> Tensor | None:
    """The inverse of `pack_rows`.

    Raises:
        ValueError, IndexError, RuntimeError: the parts of `packed` do not fit each other.
    """
    if packed is None or isinstance(packed, np.ndarray):
        return None if packed is None else torch.from_numpy(packed)
    counts = torch.from_numpy(packed.counts)
    rows = torch.zeros(len(counts), packed.width, dtype=torch.from_numpy(packed.values).dtype)
    lines = torch.arange(len(counts)).repeat_interleave(counts)
    rows[lines, torch.from_numpy(packed.ids).long()] = torch.from_numpy(packed.values)
    return rows
