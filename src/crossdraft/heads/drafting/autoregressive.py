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
from crossdraft.heads.drafting.attention import SLOT, SPARE, Cached, read_on, wide
from crossdraft.heads.drafting.head_drafter import CoupledDrafter, Listening, Voice
from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.layers import Attend, Front


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

    def listen(self, state: Listening[Pairs], output: VerifyOutput) -> None:
        tokens = output.tokens
        if output.prompt is not None:
            tokens = (*output.prompt.tokens[1:], *tokens)
            state.mind = self._begin(state, output, output.prompt)
            state.mind.before = output.prompt.tokens[:1] * (self.head.span - 1)
        mind = state.mind
        if mind is None:
            return
        dtype = self.head.embeddings.dtype
        # An answer that was cut short has fewer tokens than features; nothing is drafted behind it.
        hidden = {layer: rows[None, : len(tokens)].to(dtype) for layer, rows in output.hidden.items()}
        mind.tokens += tokens
        mind.features.append(self.head.fuse(hidden))

    def voice(self, mind: Pairs) -> Voice:
        mind.cache.truncate(0, mind.length)
        tip = self._read(mind) if mind.features or mind.tip is None else mind.tip
        return _Branches(self.head, mind, tip)

    def _begin(self, state: Listening[Pairs], output: VerifyOutput, prompt: PromptFeatures) -> Pairs:
        cache = KVCache(self.head.depth)
        front = self._front(output, prompt)
        length = 0 if front is None else len(front)
        cache.add_row(length + len(prompt.tokens) + state.room + SPARE)
        if front is None:
            return Pairs(cache)
        if length:
            cache.open_window(SLOT, length)
            for layer, (key, value) in enumerate(front.rows):
                cache.update(self.head.rotary(wide(key), front.places), wide(value), layer)
            cache.advance(0, length)
        return Pairs(cache, length=length, shift=front.start - length, aside=front.aside)

    def _front(self, output: VerifyOutput, prompt: PromptFeatures) -> Front | None:
        """What the head lays in front of the text, if it looks there and there is something."""
        if not self.head.visual_reads or not prompt.visual_tokens:
            return None
        dtype, last = self.head.embeddings.dtype, len(prompt.tokens) - 1
        visual = {layer: rows[None].to(dtype) for layer, rows in prompt.visual.items()}
        asked = {layer: rows[None, last].to(dtype) for layer, rows in output.hidden.items()}
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
        self.outputs = [tip]  # [1, m, H] each: behind the root, then behind each level's nodes
        self.rows = {ROOT: 0}
        self.level = {ROOT: 0}
        self.before = {ROOT: mind.before}
        self.fed = 0  # nodes
        # [1 + fed, fed] who sees whom; `None` while each sees all that was fed.
        self.seen: Tensor | None = None

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        if nodes[0] == ROOT:
            return self.head.say(self.outputs[0][0])
        mind, count, device = self.mind, len(nodes), self.outputs[0].device
        level = self.level[parents[0]] + 1
        mask, features = self._look([self.rows[parent] for parent in parents])
        mind.cache.reserve(mind.cache.lengths[0] + count)
        mind.cache.open_window(SLOT, count)
        places = torch.full((count,), mind.shift + mind.length - 1 + level, device=device)
        attend = Cached(mind.cache, self.head.rotary, places, mask, mind.length)
        spans = [(*self.before[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        embeds = self.head.embed_rows(torch.tensor(spans, device=device)).transpose(0, 1)
        outputs = self.head.decode(embeds, self.head.inform(features, mind.aside), attend, level)
        mind.cache.advance(0, count)
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
        past = torch.ones(count, self.mind.length, dtype=torch.bool, device=device)
        return torch.cat((past, seen), 1), whole[:, rows]
