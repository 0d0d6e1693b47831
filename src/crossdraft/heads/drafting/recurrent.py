"""Drafting with recurrent heads: Medusa, Hydra, ReDrafter.

Every node has a state vector of its own, so branches need no mask and a draft leaves nothing in a cache. Layers over
the text (Hydra++) run once per round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import VerifyOutput
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.attention import extend_text
from crossdraft.heads.drafting.head_drafter import HeadDrafter, HeadDrafterState, StepFn
from crossdraft.heads.networks.recurrent import Recurrent


@dataclass(eq=False)
class RecurrentState:
    """State of one request: drafts after `root` start at `feature` [1, H]; `pending` [1, n, H] are unread features."""

    root: int
    cache: KVCache | None = None
    pending: list[Tensor] = field(default_factory=list)
    feature: Tensor | None = None


class RecurrentDrafter(HeadDrafter[RecurrentState]):
    """Drafts with a recurrent head; arguments as in `HeadDrafter`."""

    head: Recurrent

    def update(self, state: HeadDrafterState[RecurrentState], output: VerifyOutput, hidden: dict[int, Tensor]) -> None:
        rows = self.head.last_feature(hidden)
        if output.prompt is not None:
            state.head_state = RecurrentState(ROOT, self._cache(rows.shape[1] + state.max_tokens))
        own = state.head_state
        if own is None:
            return
        own.root = output.tokens[-1]
        if own.cache is None:
            own.pending.clear()  # only the last pending feature counts
            rows = rows[:, -1:]
        own.pending.append(rows)

    def step_fn(self, head_state: RecurrentState) -> StepFn:
        own, feature = head_state, head_state.feature
        return RecurrentStep(self.head, self._read(own) if own.pending or feature is None else feature, own.root)

    def _cache(self, capacity: int) -> KVCache | None:
        if not self.head.cache_layers:
            return None
        cache = KVCache(self.head.cache_layers)
        cache.add_row(capacity)
        return cache

    def _read(self, own: RecurrentState) -> Tensor:
        """Read pending features; return the last feature read, from which drafts start."""
        rows, cache = torch.cat(own.pending, 1), own.cache
        if cache is not None:
            rows = extend_text(cache, self.head.rotary, rows.shape[1], lambda attend: self.head.read(rows, attend))
        own.pending, own.feature = [], rows[:, -1]
        return own.feature


class RecurrentStep:
    """`StepFn` of one draft, which keeps the state after every node."""

    def __init__(self, head: Recurrent, feature: Tensor, root: int) -> None:
        self.head = head
        self.states = {ROOT: head.init_state(feature, torch.tensor([root], device=feature.device))[0]}

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int], depth: int) -> Tensor:
        if depth == 0:
            return self.head.logits(self.states[ROOT][None], 0)
        above = torch.stack([self.states[parent] for parent in parents])
        states = self.head.next_state(above, torch.tensor(tokens, device=above.device))
        self.states.update(zip(nodes, states.unbind(), strict=True))
        return self.head.logits(states, depth)
