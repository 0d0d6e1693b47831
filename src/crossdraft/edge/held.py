"""An edge's draft as the cloud holds it: only the nodes that may still be verified.

Each commit drops the nodes off the committed path. A node is dropped only once, so all drops together cost no more time
than the arrival of the nodes. A tree is made from the nodes that a pass may verify only when it is asked for.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True, slots=True)
class HeldNode:
    """A node of a draft that the cloud holds.

    Args:
        token, parent: token, and parent's index, counted from the draft's first node.
        row: index of the distribution that the token was drawn from; -1 = it was chosen.
        prob: the drafter's probability of the path to the node; `None` if it knows none.
    """

    token: int
    parent: int
    row: int
    prob: float | None


@dataclass
class HeldDraft:
    """A draft, perhaps from several frames, and the node up to which the committed text has followed it.

    Args:
        frame: the draft's first frame.

    Raises:
        CrossdraftError: a parent does not precede its child.
    """

    frame: DraftFrame
    came: int = 0  # number of nodes so far, dropped ones included
    entries: int = 0  # entries of the distributions that are held
    nodes: dict[int, HeldNode] = field(default_factory=dict[int, HeldNode])
    _children: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    _rows: dict[int, tuple[NDArray[np.int32], NDArray[np.float32]]] = field(
        default_factory=dict[int, tuple[NDArray[np.int32], NDArray[np.float32]]]
    )
    _users: Counter[int] = field(default_factory=Counter[int])  # number of nodes drawn from each distribution
    _rows_came: int = 0
    _at: int = ROOT  # the last node that was committed

    def __post_init__(self) -> None:
        self._length, self._digest = self.frame.length, self.frame.digest  # of the text up to that node
        self._above = 1.0  # the probability of the path to that node
        self._children[ROOT] = []
        self._take(self.frame)

    def extend(self, frame: DraftFrame) -> bool:
        """Add a frame's nodes; return false if the frame does not continue the draft.

        Raises:
            CrossdraftError: a parent does not precede its child.
        """
        first = self.frame
        same = (frame.length, frame.digest, frame.serial) == (first.length, first.digest, first.serial)
        if not same or frame.start != self.came or frame.start + len(frame.tokens) > MOST_NODES:
            return False
        self._take(frame)
        return True

    def _take(self, frame: DraftFrame) -> None:
        self._take_rows(frame)
        parts = (frame.tokens, frame.parents, frame.origins or (-1,) * len(frame.tokens))
        probs: Sequence[float | None] = frame.probs or (None,) * len(frame.tokens)
        for token, parent, drawn_from, prob in zip(*parts, probs, strict=True):
            node, self.came = self.came, self.came + 1
            if not ROOT <= parent < node:
                raise CrossdraftError("a parent does not precede its child")
            if parent not in self._children:  # off the committed path
                continue
            row = max(drawn_from, -1)
            self.nodes[node] = HeldNode(token, parent, row, prob)
            self._children[node] = []
            self._children[parent].append(node)
            self._users[row] += 1

    def _take_rows(self, frame: DraftFrame) -> None:
        at = 0
        for count in frame.counts:
            ids, values = frame.ids[at : at + count], frame.values[at : at + count]
            self._rows[self._rows_came] = np.array(ids, np.int32), np.array(values, np.float32)
            at, self._rows_came = at + count, self._rows_came + 1
        self.entries += at

    def follow(self, committed: Committed) -> bool:
        """Drop the nodes off the committed path; return false if nothing of the draft can follow the answer any more.

        True for a draft that is used up, as it may still grow, and for one that follows tokens not yet committed.
        """
        if self._length > len(committed):
            return True
        if not committed.agrees(self._length, self._digest):
            return False
        path, contradicted = self._walked(committed)
        for node in path:
            self._step(node)
        if path:
            self._length += len(path)
            self._digest = committed.digest(self._length)
        return not contradicted

    def _walked(self, committed: Committed) -> tuple[list[int], bool]:
        """Nodes committed since the last call, and whether the text then contradicts all nodes below."""
        path, at = list[int](), self._at
        for index in range(self._length, len(committed)):
            below = self._children[at]
            at = next((child for child in below if self.nodes[child].token == committed.tokens[index]), ROOT)
            if at == ROOT:
                return path, bool(below)
            path.append(at)
        return path, False

    def _step(self, node: int) -> None:
        """Commit this child; drop its siblings and their descendants."""
        others = [child for child in self._children.pop(self._at) if child != node]
        while others:
            child = others.pop()
            others += self._children.pop(child)
            self._drop(child)
        prob = self._drop(node).prob
        self._above = 1.0 if prob is None else prob
        self._at = node

    def _drop(self, node: int) -> HeldNode:
        """Drop a node, and its distribution if no other node uses it."""
        gone = self.nodes.pop(node)
        self._users[gone.row] -= 1
        if not self._users[gone.row]:
            del self._users[gone.row]
            ids, _ = self._rows.pop(gone.row, ((), ()))
            self.entries -= len(ids)
        return gone

    def after(self, committed: Committed, nodes: int, vocabulary: int, *, draws: bool = False) -> Draft | None:
        """Draft of the first nodes that follow the committed tokens; `None` if there are none.

        Nothing is dropped, since `committed` may be a trial.

        Args:
            committed: the answer so far.
            nodes: largest number of nodes.
            vocabulary: width of a distribution.
            draws: trust that tokens were drawn from the distributions sent with them; otherwise they count as chosen.

        Raises:
            CrossdraftError, IndexError, RuntimeError, ValueError: the nodes form no valid draft.
        """
        if self._length > len(committed) or not committed.agrees(self._length, self._digest):
            return None
        path, _ = self._walked(committed)
        at = path[-1] if path else self._at
        if self._length + len(path) < len(committed) or not self._children[at]:
            return None
        index, found = {at: ROOT}, list[HeldNode]()
        for number in self._below(at, nodes):
            index[number] = len(found)
            found.append(self.nodes[number])
        used = sorted({node.row for node in found if node.row >= 0}) if draws else []
        tree = DraftTree(
            tuple(node.token for node in found),
            tuple(index[node.parent] for node in found),
            self._dists(used, vocabulary) if used else None,
            tuple(used.index(node.row) if node.row in used else -1 for node in found),
        )
        probs = [node.prob for node in found if node.prob is not None]
        if len(probs) < len(found) or used:
            return Draft(tree)
        above = (self.nodes[at].prob or 0.0) if path else self._above
        return Draft(tree, tuple(min(1.0, prob / above) if above else 0.0 for prob in probs))

    def _below(self, node: int, most: int) -> Iterator[int]:
        """Yield the first nodes below a node, in order: parents, and earlier siblings, first."""
        waiting = [*self._children[node]]  # in order, hence a heap
        while waiting and most > 0:
            found, most = heapq.heappop(waiting), most - 1
            for child in self._children[found]:
                heapq.heappush(waiting, child)
            yield found

    def _dists(self, used: Sequence[int], vocabulary: int) -> Tensor:
        dists = torch.zeros(len(used), vocabulary)
        for row, number in enumerate(used):
            if number not in self._rows:
                raise CrossdraftError("a node names a distribution that did not come")
            ids, values = self._rows[number]
            if len(np.unique(ids)) != len(ids) or ids.min(initial=0) < 0:
                raise CrossdraftError("a distribution names an id twice, or one that there is not")
            dists[row, torch.from_numpy(ids).long()] = torch.from_numpy(values)
        return dists
