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

from crossdraft.drafters.heads.coupled import CoupledDrafter, Listening, Voice
from crossdraft.drafters.heads.reading import SLOT, SPARE, Cached, read_on
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Committed, PromptFeatures
from crossdraft.engine.tree import ROOT
from crossdraft.models.heads.autoregressive import Autoregressive
from crossdraft.models.heads.parts import Attend, Front


@dataclass(eq=False)
class Pairs:
    """One answer as the head knows it.

    `tokens` and `features` [1, n, H] are pairs that are not read yet; `tip` [1, 1, H] is the output at the last pair
    that was, the `length`-th of the cache. The row at place i of the cache has position `i + shift`; `aside` [1, 1, H]
    is what the front tells every row; `before` are the tokens in front of the next row that it takes in too.
    """

    cache: KVCache
    tokens: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    tip: Tensor | None = None
    length: int = 0
    shift: int = 0
    aside: Tensor | None = None
    before: tuple[int, ...] = ()


class AutoregressiveDrafter(CoupledDrafter[Pairs]):
    """See the module's text."""

    head: Autoregressive

    def listen(self, state: Listening[Pairs], verdict: Committed) -> None:
        tokens = verdict.tokens
        if verdict.prompt is not None:
            tokens = (*verdict.prompt.tokens[1:], *tokens)
            state.mind = self._begin(state, verdict, verdict.prompt)
            state.mind.before = verdict.prompt.tokens[:1] * (self.head.span - 1)
        mind = state.mind
        if mind is None:
            return
        dtype = self.head.embeddings.dtype
        # An answer that was cut short has fewer tokens than features; nothing is drafted behind it.
        hidden = {layer: rows[None, : len(tokens)].to(dtype) for layer, rows in verdict.hidden.items()}
        mind.tokens += tokens
        mind.features.append(self.head.fuse(hidden))

    def voice(self, mind: Pairs) -> Voice:
        mind.cache.truncate(0, mind.length)
        tip = self._read(mind) if mind.features or mind.tip is None else mind.tip
        return _Branches(self.head, mind, tip)

    def _begin(self, state: Listening[Pairs], verdict: Committed, prompt: PromptFeatures) -> Pairs:
        cache = KVCache(self.head.depth)
        front = self._front(verdict, prompt)
        length = 0 if front is None else len(front)
        cache.add_row(length + len(prompt.tokens) + state.room + SPARE)
        if front is None:
            return Pairs(cache)
        if length:
            cache.open_window(SLOT, length)
            for layer, (key, value) in enumerate(front.rows):
                cache.update(self.head.rotary(key, front.places), value, layer)
            cache.advance(0, length)
        return Pairs(cache, length=length, shift=front.start - length, aside=front.aside)

    def _front(self, verdict: Committed, prompt: PromptFeatures) -> Front | None:
        """What the head lays in front of the text, if it looks there and there is something."""
        if not self.head.visual_reads or not prompt.visual_tokens:
            return None
        dtype, last = self.head.embeddings.dtype, len(prompt.tokens) - 1
        visual = {layer: rows[None].to(dtype) for layer, rows in prompt.visual.items()}
        asked = {layer: rows[None, last].to(dtype) for layer, rows in verdict.hidden.items()}
        ids = torch.tensor([[*prompt.visual_tokens, prompt.tokens[0]]], device=self.head.draft_ids.device)
        return self.head.front(visual, ids, asked)

    def _read(self, mind: Pairs) -> Tensor:
        """One pass over the pairs that a verdict brought; returns the new tip."""
        tokens = (*mind.before, *mind.tokens)
        embeds = self.head.embed_rows(torch.tensor([tokens], device=self.head.draft_ids.device))
        features = self.head.inform(torch.cat(mind.features, 1), mind.aside)

        def layers(attend: Attend) -> Tensor:
            return self.head.decode(embeds, features, attend, 0)

        outputs = read_on(mind.cache, self.head.rotary, embeds.shape[1], layers, mind.shift)
        tip = mind.tip = outputs[:, -1:]
        mind.length = mind.cache.lengths[0]
        mind.tokens, mind.features, mind.before = [], [], tokens[len(tokens) - self.head.span + 1 :]
        return tip


class _Branches:
    """A draft: outputs and cache places of the nodes that were asked about."""

    def __init__(self, head: Autoregressive, mind: Pairs, tip: Tensor) -> None:
        self.head, self.mind = head, mind
        self.outputs = tip  # [1, 1 + fed, H]: behind the root, then behind each node in the order of feeding
        self.rows = {ROOT: 0}
        self.level = {ROOT: 0}
        self.before = {ROOT: mind.before}
        self.seen = torch.zeros(1, 0, dtype=torch.bool, device=tip.device)  # [1 + fed, fed] who sees whom

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        if nodes[0] == ROOT:
            return self.head.say(self.outputs[0, :1])
        device, count = self.outputs.device, len(nodes)
        above = torch.tensor([self.rows[parent] for parent in parents], device=device)
        level = self.level[parents[0]] + 1
        own = torch.eye(count, dtype=torch.bool, device=device)
        seen = torch.cat((self.seen[above], own), 1)
        past = torch.ones(count, self.mind.length, dtype=torch.bool, device=device)
        cache = self.mind.cache
        cache.reserve(cache.lengths[0] + count)
        cache.open_window(SLOT, count)
        places = torch.full((count,), self.mind.shift + self.mind.length - 1 + level, device=device)
        attend = Cached(cache, self.head.rotary, places, torch.cat((past, seen), 1), self.mind.length)
        spans = [(*self.before[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        embeds = self.head.embed_rows(torch.tensor(spans, device=device)).transpose(0, 1)
        features = self.head.inform(self.outputs[:, above], self.mind.aside)
        outputs = self.head.decode(embeds, features, attend, level)
        cache.advance(0, count)
        first = self.outputs.shape[1]
        self.rows |= {node: first + place for place, node in enumerate(nodes)}
        self.level |= dict.fromkeys(nodes, level)
        self.before |= {node: span[1:] for node, span in zip(nodes, spans, strict=True)}
        self.outputs = torch.cat((self.outputs, outputs), 1)
        self.seen = torch.cat((F.pad(self.seen, (0, count)), seen), 0)
        return self.head.say(outputs[0])
