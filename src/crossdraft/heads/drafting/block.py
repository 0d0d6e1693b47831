"""Drafting with heads that guess a whole block in one pass: DFlash; see `networks.dflash`.

What is said at a level of the tree depends on how far it is from the root and on nothing that was drafted: one pass
serves any tree, whose chances are then products of each level's. Kept of the text are each layer's keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import VerifyOutput
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.attention import SLOT, SPARE, CachedAttention, wide
from crossdraft.heads.drafting.head_drafter import Grow, HeadDrafter, HeadDrafterState, StepFn
from crossdraft.heads.drafting.recurrent import within
from crossdraft.heads.networks.dflash import DFlash


@dataclass(eq=False)
class BlockState:
    """One answer as the head knows it.

    `unread` [1, n, H] are features whose keys and values are not in the cache yet; `laws` [steps, D] is what was said
    behind the `root`, if it was asked since.
    """

    cache: KVCache
    root: int = ROOT
    unread: list[Tensor] = field(default_factory=list)
    laws: Tensor | None = None


class BlockDrafter(HeadDrafter[BlockState]):
    """See the module's text, and `HeadDrafter` for the arguments."""

    head: DFlash

    def __init__(self, head: DFlash, grow: Grow, ends: Sequence[int] = (), banned: Sequence[int] = ()) -> None:
        super().__init__(head, within(grow, head.config.steps), ends, banned)
        self.ahead = 1 + head.config.steps  # the whole block is asked at once

    def update(self, state: HeadDrafterState[BlockState], output: VerifyOutput) -> None:
        count = len(output.tokens)
        if output.prompt is not None:
            count += len(output.prompt.tokens) - 1
            state.head_state = BlockState(KVCache(len(self.head.layers)))
            state.head_state.cache.add_row(count + state.room + max(SPARE, 1 + self.head.config.steps))
        head_state = state.head_state
        if head_state is None:
            return
        dtype = self.head.embeddings.dtype
        # An answer that was cut short has fewer tokens than features; nothing is drafted behind it.
        hidden = {layer: rows[None, :count].to(dtype) for layer, rows in output.hidden.items()}
        head_state.unread.append(self.head.context(hidden))
        head_state.root, head_state.laws = output.tokens[-1], None

    def step_fn(self, head_state: BlockState) -> StepFn:
        if head_state.laws is None:
            self._read(head_state)
            head_state.laws = self._ask_all(head_state)
        return _Levels(head_state.laws)

    def _read(self, head_state: BlockState) -> None:
        """Keys and values of what the last verdicts brought."""
        context, past = torch.cat(head_state.unread, 1), head_state.cache.lengths[0]
        count = context.shape[1]
        head_state.cache.open_window(SLOT, count)
        places = torch.arange(past, past + count, device=context.device)
        for layer, (key, value) in enumerate(self.head.keys_values(context)):
            head_state.cache.update(self.head.rotary(wide(key), places), wide(value), layer)
        head_state.cache.advance(0, count)
        head_state.unread = []

    def _ask_all(self, head_state: BlockState) -> Tensor:
        """[steps, D] what is said of the block behind the root. Its own rows are not kept."""
        past, device = head_state.cache.lengths[0], self.head.draft_ids.device
        rows = self.head.block(torch.tensor([head_state.root], device=device))
        width = rows.shape[1]
        head_state.cache.open_window(SLOT, width)
        everything = torch.ones(width, past + width, dtype=torch.bool, device=device)
        places = torch.arange(past, past + width, device=device)
        return self.head.draft(rows, CachedAttention(head_state.cache, self.head.rotary, places, everything))[0, 1:]


class _Levels:
    """A draft: how far each node that was asked about is from the root."""

    def __init__(self, laws: Tensor) -> None:
        self.laws = laws
        self.level = {ROOT: 0}

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        if nodes[0] == ROOT:
            return self.laws[:1]
        level = self.level[parents[0]] + 1
        self.level |= dict.fromkeys(nodes, level)
        return self.laws[level].expand(len(nodes), -1)
