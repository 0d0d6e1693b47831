"""Drafting with a Gemma 4 assistant: one row a node, all at the position of the root.

The siblings of a tree are rows of one pass. Nothing is written to the keys while drafting, so that there is nothing to
take back; the keys of verified tokens are the target's own, copied as they come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import VerifyOutput
from crossdraft.heads.assistant.network import AssistantHead, KeyValues
from crossdraft.heads.drafting.attention import SLOT, SPARE
from crossdraft.heads.drafting.head_drafter import HeadDrafter, HeadDrafterState, StepFn


@dataclass(eq=False)
class AssistantHeadState:
    """State of one request: the target's keys of the committed tokens, the root, and the feature in front of it.

    `cache` holds a layer for each type of layer of the assistant, in the order of `AssistantHead.kv_layers`.
    """

    cache: KVCache
    root: int = 0
    feature: Tensor | None = None


class AssistantDrafter(HeadDrafter[AssistantHeadState]):
    """Drafts with an assistant, one pass a depth; arguments as in `HeadDrafter`."""

    head: AssistantHead

    def __init__(self, head: AssistantHead, *arguments: Any) -> None:
        super().__init__(head, *arguments)
        self.needs = replace(self.needs, kv_layers=tuple(sorted({*head.kv_layers.values()})))

    def update(
        self, state: HeadDrafterState[AssistantHeadState], output: VerifyOutput, hidden: dict[int, Tensor]
    ) -> None:
        if state.head_state is None:
            cache = KVCache(len(self.head.kv_layers))
            cache.add_row(len(state.tokens) + state.max_tokens + SPARE)
            state.head_state = AssistantHeadState(cache)
        own = state.head_state
        known = own.cache.lengths[0]
        new = [output.kv[layer] for layer in self.head.kv_layers.values()]
        if count := new[0][0].shape[1] - known:
            own.cache.open_window(SLOT, count)
            for layer, (keys, values) in enumerate(new):
                own.cache.update(keys[None, :, known:], values[None, :, known:], layer)
            own.cache.advance(0, count)
        rows = hidden[self.head.config.num_layers]
        own.root, own.feature = output.tokens[-1], rows[:, -1:]

    def step_fn(self, head_state: AssistantHeadState) -> StepFn:
        cache = head_state.cache
        cache.open_window(SLOT, 0)
        kinds = enumerate(self.head.kv_layers)
        shared = {kind: cache.first(layer, cache.lengths[0]) for layer, kind in kinds}
        return AssistantStep(self.head, head_state, shared)


class AssistantStep:
    """`StepFn` of one draft, which keeps the features of its nodes."""

    def __init__(self, head: AssistantHead, state: AssistantHeadState, shared: KeyValues) -> None:
        self.head, self.state, self.shared = head, state, shared
        self.features: dict[int, Tensor] = {}  # node -> [1, 1, H], for its children

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int], depth: int) -> Tensor:
        own = self.state
        before = [own.feature] if depth == 0 else [self.features[parent] for parent in parents]
        ids = torch.tensor([[own.root] if depth == 0 else [*tokens]], device=self.head.draft_ids.device)
        features = torch.cat([one for one in before if one is not None], 1)
        logits, after = self.head.step(ids, features, self.shared, own.cache.lengths[0])
        self.features |= {node: after[:, row : row + 1] for row, node in enumerate(nodes)}
        return logits
