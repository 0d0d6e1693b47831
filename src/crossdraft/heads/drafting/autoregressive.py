"""Drafting with heads that go on from their own output: EAGLE and its kin.

The head's keys and values of the text are computed from the target's own features, one pass over what a verdict
brought; a draft's stand behind them until the next verdict. The head's text trails the target's by one place: the
last pair it reads is the feature of the token in front of the root, and the root.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import PromptFeatures, VerifyOutput
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.attention import SLOT, SPARE, CachedAttention, extend_text, wide
from crossdraft.heads.drafting.head_drafter import HeadDrafter, HeadDrafterState, StepFn
from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.layers import Attend, PrefixKV


@dataclass(eq=False)
class AutoregressiveState:
    """One answer as the head knows it.

    `tokens` and `features` [1, n, H] are pairs that are not read yet; `tip` [1, 1, H] is the output at the last pair
    that was, the `length`-th of the cache. The row at index i of the cache has position `i + shift`; `global_feature`
    [1, 1, H] is the prefix's; `before` are the tokens in front of the next row that it takes in too.
    """

    cache: KVCache
    tokens: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    tip: Tensor | None = None
    length: int = 0
    shift: int = 0
    global_feature: Tensor | None = None
    before: tuple[int, ...] = ()


class AutoregressiveDrafter(HeadDrafter[AutoregressiveState]):
    """See the module's text."""

    head: Autoregressive

    def update(self, state: HeadDrafterState[AutoregressiveState], output: VerifyOutput) -> None:
        tokens = output.tokens
        if output.prompt is not None:
            tokens = (*output.prompt.tokens[1:], *tokens)
            state.head_state = self._begin(state, output, output.prompt)
            state.head_state.before = output.prompt.tokens[:1] * (self.head.span - 1)
        head_state = state.head_state
        if head_state is None:
            return
        dtype = self.head.embeddings.dtype
        # An answer that was cut short has fewer tokens than features; nothing is drafted behind it.
        hidden = {layer: rows[None, : len(tokens)].to(dtype) for layer, rows in output.hidden.items()}
        head_state.tokens += tokens
        head_state.features.append(self.head.fuse(hidden))

    def step_fn(self, head_state: AutoregressiveState) -> StepFn:
        head_state.cache.truncate(0, head_state.length)
        tip = self._read(head_state) if head_state.features or head_state.tip is None else head_state.tip
        return _Branches(self.head, head_state, tip)

    def _begin(
        self, state: HeadDrafterState[AutoregressiveState], output: VerifyOutput, prompt: PromptFeatures
    ) -> AutoregressiveState:
        cache = KVCache(self.head.depth)
        prefix = self._prefix(output, prompt)
        length = 0 if prefix is None else len(prefix)
        cache.add_row(length + len(prompt.tokens) + state.room + SPARE)
        if prefix is None:
            return AutoregressiveState(cache)
        if length:
            cache.open_window(SLOT, length)
            for layer, (key, value) in enumerate(prefix.rows):
                cache.update(self.head.rotary(wide(key), prefix.places), wide(value), layer)
            cache.advance(0, length)
        return AutoregressiveState(
            cache, length=length, shift=prefix.start - length, global_feature=prefix.global_feature
        )

    def _prefix(self, output: VerifyOutput, prompt: PromptFeatures) -> PrefixKV | None:
        """What the head lays in front of the text, if it looks there and there is something."""
        if not self.head.visual_reads or not prompt.visual_tokens:
            return None
        dtype, last = self.head.embeddings.dtype, len(prompt.tokens) - 1
        visual = {layer: rows[None].to(dtype) for layer, rows in prompt.visual.items()}
        asked = {layer: rows[None, last].to(dtype) for layer, rows in output.hidden.items()}
        ids = torch.tensor([[*prompt.visual_tokens, prompt.tokens[0]]], device=self.head.draft_ids.device)
        return self.head.prefix(visual, ids, asked)

    def _read(self, head_state: AutoregressiveState) -> Tensor:
        """One pass over the pairs that a verdict brought; returns the new tip."""
        tokens = (*head_state.before, *head_state.tokens)
        embeds = self.head.embed_tokens(torch.tensor([tokens], device=self.head.draft_ids.device))
        features = self.head.add_global(torch.cat(head_state.features, 1), head_state.global_feature)

        def layers(attend: Attend) -> Tensor:
            return self.head.decode(embeds, features, attend, 0)

        outputs = extend_text(head_state.cache, self.head.rotary, embeds.shape[1], layers, head_state.shift)
        tip = head_state.tip = outputs[:, -1:]
        head_state.length = head_state.cache.lengths[0]
        head_state.tokens, head_state.features, head_state.before = [], [], tokens[len(tokens) - self.head.span + 1 :]
        return tip


class _Branches:
    """A draft: outputs and cache places of the nodes that were asked about."""

    def __init__(self, head: Autoregressive, head_state: AutoregressiveState, tip: Tensor) -> None:
        self.head, self.head_state = head, head_state
        self.outputs = [tip]  # [1, m, H] each: behind the root, then behind each level's nodes
        self.rows = {ROOT: 0}
        self.level = {ROOT: 0}
        self.before = {ROOT: head_state.before}
        self.fed = 0  # nodes
        # [1 + fed, fed] who sees whom; `None` while each sees all that was fed.
        self.seen: Tensor | None = None

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        if nodes[0] == ROOT:
            return self.head.say(self.outputs[0][0])
        head_state, count, device = self.head_state, len(nodes), self.outputs[0].device
        level = self.level[parents[0]] + 1
        mask, features = self._look([self.rows[parent] for parent in parents])
        head_state.cache.reserve(head_state.cache.lengths[0] + count)
        head_state.cache.open_window(SLOT, count)
        places = torch.full((count,), head_state.shift + head_state.length - 1 + level, device=device)
        attend = CachedAttention(head_state.cache, self.head.rotary, places, mask, head_state.length)
        spans = [(*self.before[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        embeds = self.head.embed_tokens(torch.tensor(spans, device=device)).transpose(0, 1)
        outputs = self.head.decode(embeds, self.head.add_global(features, head_state.global_feature), attend, level)
        head_state.cache.advance(0, count)
        for place, (node, span) in enumerate(zip(nodes, spans, strict=True), 1 + self.fed):
            self.rows[node], self.level[node], self.before[node] = place, level, span[1:]
        self.outputs.append(outputs)
        self.fed += count
        return self.head.say(outputs[0])

    def _look(self, above: Sequence[int]) -> tuple[Tensor | None, Tensor]:
        """What nodes below these rows may attend to, `None` = everything; outputs [1, m, H] that they go on from."""
        if self.seen is None and len(above) == 1 and above[0] == self.fed:
            return None, self.outputs[-1][:, -1:]  # a chain needs no masks
        device, count = self.outputs[0].device, len(above)
        if self.seen is None:  # all that was fed is a chain
            self.seen = torch.ones(1 + self.fed, self.fed, dtype=torch.bool, device=device).tril_(-1)
        whole = torch.cat(self.outputs, 1)
        self.outputs = [whole]
        rows = torch.tensor(above, device=device)
        seen = torch.cat((self.seen[rows], torch.eye(count, dtype=torch.bool, device=device)), 1)
        self.seen = torch.cat((F.pad(self.seen, (0, count)), seen), 0)
        past = torch.ones(count, self.head_state.length, dtype=torch.bool, device=device)
        return torch.cat((past, seen), 1), whole[:, rows]
