"""The frame of a draft: what is drawn from travels to the bit, as the entries that are not zero."""

from torch import Tensor

from crossdraft.edge.frames import DraftFrame
from crossdraft.engine.drafter import Draft


def frame_of(
    draft: Draft, after: tuple[int, bytes], serial: int, start: int = 0, start_rows: int = 0, *, known: int = 0
) -> DraftFrame:
    """The frame of a draft's nodes from `start` on.

    Args:
        draft: rooted at the first of the nodes that were sent before, if any were.
        after: how many tokens are committed in front of it, and their digest.
        serial: its number.
        start, start_rows: nodes and distributions that were sent before.
        known: see `DraftFrame`.
    """
    tree = draft.tree
    rows = [] if tree.dists is None else [_entries(row) for row in tree.dists[start_rows : 1 + max(tree.drawn_from)]]
    return DraftFrame(
        *after,
        serial,
        start,
        tree.tokens[start:],
        tree.parents[start:],
        tree.drawn_from[start:] if rows else (),
        tuple(draft.path_probs[start : len(tree)]),
        tuple(len(ids) for ids, _ in rows),
        tuple(i for ids, _ in rows for i in ids),
        tuple(value for _, values in rows for value in values),
        known,
    )


def _entries(row: Tensor) -> tuple[list[int], list[float]]:
    ids = row.nonzero()[:, 0]
    return ids.tolist(), row[ids].float().tolist()
