"""Drafts and their frames: what is drawn from travels to the bit, as the entries that are not zero."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import DraftFrame
from crossdraft.engine.checks import MOST_NODES
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError


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


@dataclass
class HeldDraft:
    """A draft that came, perhaps in several frames.

    Args:
        frame: the first of them.
        rows: of each distribution its ids and values.
    """

    frame: DraftFrame
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    rows: list[tuple[NDArray[np.int32], NDArray[np.float32]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._take(self.frame)

    @property
    def size(self) -> int:
        """Nodes, and entries of distributions."""
        return len(self.tokens) + sum(len(ids) for ids, _ in self.rows)

    def extend(self, frame: DraftFrame) -> bool:
        """Further nodes; false if the frame is not what follows."""
        own = self.frame
        same = (frame.length, frame.digest, frame.serial) == (own.length, own.digest, own.serial)
        if not same or frame.start != len(self.tokens) or frame.start + len(frame.tokens) > MOST_NODES:
            return False
        self._take(frame)
        return True

    def _take(self, frame: DraftFrame) -> None:
        self.tokens += frame.tokens
        self.parents += frame.parents
        self.origins += frame.origins or (-1,) * len(frame.tokens)
        self.probs += frame.probs
        at = 0
        for count in frame.counts:
            ids, values = frame.ids[at : at + count], frame.values[at : at + count]
            self.rows.append((np.array(ids, np.int32), np.array(values, np.float32)))
            at += count

    def contradicted(self, committed: Committed) -> bool:
        """Whether the committed text is another one: nothing of the draft will ever follow it.

        A draft that is used up may still grow, and so may one that follows more than is committed yet.
        """
        if self.frame.length > len(committed):
            return False
        if not committed.agrees(self.frame.length, self.frame.digest):
            return True
        since = committed.tokens[self.frame.length :]
        last, depth, left = ROOT, 0, False
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=False)):  # parents come first
            if depth < len(since) and parent == last:
                left = token != since[depth]
                last, depth = (last, depth) if left else (node, depth + 1)
        return left

    def after(self, committed: Committed, vocabulary: int, *, draws: bool = True) -> Draft | None:
        """What of it follows the committed tokens; `None` if it is of another text, or used up.

        Args:
            committed: the answer so far.
            vocabulary: width of a distribution.
            draws: believe that tokens were drawn from what is sent with them; else they are taken as chosen.

        Raises:
            CrossdraftError, IndexError, RuntimeError, ValueError: it is no draft.
        """
        if not committed.agrees(self.frame.length, self.frame.digest):
            return None
        origins = tuple(self.origins) if draws else ()
        # No distribution is made of what is not verified.
        tree = DraftTree(tuple(self.tokens), tuple(self.parents), torch.empty(len(self.rows), 0), origins)
        since = committed.tokens[self.frame.length :]
        path = tree.follow(since)
        if len(path) < len(since):
            return None
        nodes = below(tree, path[-1] if path else ROOT)
        if not nodes:
            return None
        index = {path[-1] if path else ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        used = sorted({row for node in nodes if (row := tree.drawn_from[node]) >= 0})
        made = DraftTree(
            tuple(tree.tokens[node] for node in nodes),
            tuple(index[tree.parents[node]] for node in nodes),
            self._dists(used, vocabulary) if used else None,
            tuple(used.index(row) if (row := tree.drawn_from[node]) >= 0 else -1 for node in nodes),
        )
        if len(self.probs) != len(self.tokens) or used:
            return Draft(made)
        above = self.probs[path[-1]] if path else 1.0
        return Draft(made, tuple(min(1.0, self.probs[node] / above) if above else 0.0 for node in nodes))

    def _dists(self, used: Sequence[int], vocabulary: int) -> Tensor:
        dists = torch.zeros(len(used), vocabulary)
        for row, number in enumerate(used):
            ids, values = self.rows[number]
            if len(np.unique(ids)) != len(ids) or ids.min(initial=0) < 0:
                raise CrossdraftError("a distribution names an id twice, or one that there is not")
            dists[row, torch.from_numpy(ids).long()] = torch.from_numpy(values)
        return dists


def below(tree: DraftTree, node: int) -> list[int]:
    """The nodes under one (`-1` = the root), parents first.

    >>> below(DraftTree.from_paths([[5, 6], [5, 7], [8]]), 0)
    [1, 2]
    """
    under = {node}
    for child, parent in enumerate(tree.parents):
        if parent in under:
            under.add(child)
    return sorted(under - {node})
