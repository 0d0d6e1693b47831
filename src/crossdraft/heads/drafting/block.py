"""Block drafting (DFlash, DSpark): a whole draft in one pass.

The logits at a depth do not depend on the drafted tokens, or on the one before alone (DSpark): one pass serves any
tree. Each layer's keys and values of the text are kept, also where it slides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import VerifyOutput
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.attention import SLOT, SPARE, CachedAttention, upcast_on_cpu
from crossdraft.heads.drafting.head_drafter import Grow, HeadDrafter, HeadDrafterState, StepFn
from crossdraft.heads.networks.dflash import DFlash


@dataclass(eq=False)
class BlockState:
    """State of one request: keys and values of its text.

    `pending` [1, n, H] are features whose keys and values are not in the cache yet; `logits` [steps, D] are those of
    the block after `root`, once computed.
    """

    cache: KVCache
    root: int = ROOT
    pending: list[Tensor] = field(default_factory=list)
    logits: Tensor | None = None


@dataclass(frozen=True)
class BlockRows(CachedAttention):
    """Attention of a block's rows, with a mask for each layer."""

    masks: tuple[Tensor, ...] = ()

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._attend(query, *self._store(layer, key, value), self.masks[layer])


class BlockDrafter(HeadDrafter[BlockState]):
    """Drafts all tokens in one pass of a block head; arguments as in `HeadDrafter`."""

    head: DFlash

    def __init__(self, head: DFlash, grow: Grow, ends: Sequence[int] = (), banned: Sequence[int] = ()) -> None:
        super().__init__(head, grow, ends, banned)
        self.min_positions = 1 + head.config.steps  # the whole block is computed at once

    def update(self, state: HeadDrafterState[BlockState], output: VerifyOutput, hidden: dict[int, Tensor]) -> None:
        if output.prompt is not None and self.head.visual_reads and output.prompt.visual_tokens:
            front = output.prompt.visual
            hidden = {layer: torch.cat((front[layer][None].to(rows), rows), 1) for layer, rows in hidden.items()}
        context = self.head.context(hidden)
        if output.prompt is not None:
            state.head_state = BlockState(KVCache(len(self.head.layers)))
            spare = max(SPARE, 1 + self.head.config.steps)
            state.head_state.cache.add_row(context.shape[1] + state.max_tokens + spare)
        own = state.head_state
        if own is not None:
            own.pending.append(context)
            own.root, own.logits = output.tokens[-1], None

    def step_fn(self, head_state: BlockState) -> StepFn:
        if head_state.logits is None:
            self._extend(head_state)
            head_state.logits = self._block_logits(head_state)
        logits, root, device = head_state.logits, head_state.root, self.head.draft_ids.device
        return lambda nodes, tokens, parents, depth: self.head.after(
            logits[depth], torch.tensor(tokens or [root], device=device)
        )

    def _extend(self, own: BlockState) -> None:
        """Compute the keys and values of the features since the last draft."""
        context, past = torch.cat(own.pending, 1), own.cache.lengths[0]
        count = context.shape[1]
        own.cache.open_window(SLOT, count)
        positions = torch.arange(past, past + count, device=context.device)
        for layer, (key, value) in enumerate(self.head.keys_values(context)):
            own.cache.update(self.head.rotary(upcast_on_cpu(key), positions), upcast_on_cpu(value), layer)
        own.cache.advance(0, count)
        own.pending = []

    def _block_logits(self, own: BlockState) -> Tensor:
        """Compute logits [steps, D] of the block after the root. The block's keys and values are not kept."""
        past, device = own.cache.lengths[0], self.head.draft_ids.device
        rows = self.head.block(torch.tensor([own.root], device=device))
        width = rows.shape[1]
        own.cache.open_window(SLOT, width)
        keys = torch.arange(past + width, device=device)
        positions = keys[past:]
        distance = positions[:, None] - keys
        masks = tuple(self.head.sees(layer, distance) for layer in range(len(self.head.layers)))
        return self.head.draft(rows, BlockRows(own.cache, self.head.rotary, positions, None, masks=masks))[
            0, self.head.first :
        ]
