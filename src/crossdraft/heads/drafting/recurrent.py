"""Drafting with heads that remember a draft in a state: Medusa, Hydra, ReDrafter; see `models.heads.recurrent`.

Every node that was asked about keeps its own state, one row. There are no keys and values of a draft, so branches
need no mask, and nothing is left behind when a draft is done. A head that reads the text itself (Hydra++) does so
once per verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.heads.drafting.attention import extend_text
from crossdraft.heads.drafting.head_drafter import Grow, HeadDrafter, HeadDrafterState, StepFn
from crossdraft.heads.networks.recurrent import Recurrent


@dataclass(eq=False)
class RecurrentState:
    """One answer as the head knows it.

    `unread` [1, n, H] are features of the target that no draft was made with yet; `begin` [1, H] is what drafts
    behind the `root` begin from, once they are read.
    """

    root: int
    cache: KVCache | None = None
    unread: list[Tensor] = field(default_factory=list)
    begin: Tensor | None = None


class RecurrentDrafter(HeadDrafter[RecurrentState]):
    """See the module's text, and `HeadDrafter` for the arguments."""

    head: Recurrent

    def __init__(self, head: Recurrent, grow: Grow, ends: Sequence[int] = (), banned: Sequence[int] = ()) -> None:
        super().__init__(head, grow if head.levels is None else within(grow, head.levels), ends, banned)

    def update(self, state: HeadDrafterState[RecurrentState], output: VerifyOutput) -> None:
        count = len(output.tokens)
        if output.prompt is not None:
            count += len(output.prompt.tokens) - 1
            state.head_state = RecurrentState(ROOT, self._cache(count + state.room))
        head_state = state.head_state
        if head_state is None:
            return
        # An answer that was cut short has fewer tokens than features; nothing is drafted behind it.
        rows = self.head.last(output.hidden)[None, :count].to(self.head.embeddings.dtype)
        head_state.root = output.tokens[-1]
        if head_state.cache is None:
            head_state.unread.clear()  # of these only the last counts
            rows = rows[:, -1:]
        head_state.unread.append(rows)

    def step_fn(self, head_state: RecurrentState) -> StepFn:
        begin = self._read(head_state) if head_state.unread or head_state.begin is None else head_state.begin
        return _States(self.head, begin, head_state.root)

    def _cache(self, capacity: int) -> KVCache | None:
        if not self.head.depth:
            return None
        cache = KVCache(self.head.depth)
        cache.add_row(capacity)
        return cache

    def _read(self, head_state: RecurrentState) -> Tensor:
        """Take in what verdicts brought; returns what drafts begin from."""
        rows, cache = torch.cat(head_state.unread, 1), head_state.cache
        if cache is not None:
            rows = extend_text(cache, self.head.rotary, rows.shape[1], lambda attend: self.head.read(rows, attend))
        head_state.unread, head_state.begin = [], rows[:, -1]
        return head_state.begin


def within(grow: Grow, levels: int) -> Grow:
    """The same builder for a head that can say no more than `levels` tokens in a row: 0 behind all further nodes."""

    def shorter(expand: ProbsFn, choose: SelectFn, budget: Budget) -> BuiltTree:
        def told(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
            return expand(tree, nodes) if len(tree.path(nodes[0])) < levels else torch.zeros(len(nodes), 1)

        return grow(told, choose, budget)

    return shorter


class _States:
    """A draft: the state behind every node that was asked about, and how far it is from the root."""

    def __init__(self, head: Recurrent, begin: Tensor, root: int) -> None:
        self.head = head
        states = head.init_state(begin, torch.tensor([root], device=begin.device))
        self.states = {ROOT: states[0]}
        self.level = {ROOT: 0}

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        if nodes[0] == ROOT:
            return self.head.say(self.states[ROOT][None], 0)
        above = torch.stack([self.states[parent] for parent in parents])
        level = self.level[parents[0]] + 1
        states = self.head.next_state(above, torch.tensor(tokens, device=above.device))
        self.states.update(zip(nodes, states.unbind(), strict=True))
        self.level |= dict.fromkeys(nodes, level)
        return self.head.say(states, level)
