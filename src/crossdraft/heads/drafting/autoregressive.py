"""Drafting with autoregressive heads: EAGLE and its kin.

The head's keys and values of the text are computed from the target's own features, in one pass per round over the
verified tokens; a draft's keys and values follow them until the next round. The head's text is one position shorter
than the target's: its last pair is the feature of the token before the root, and the root.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import PromptFeatures, VerifyOutput
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.attention import SLOT, SPARE, CachedAttention, extend_text, upcast_on_cpu
from crossdraft.heads.drafting.head_drafter import Grow, HeadDrafter, HeadDrafterState, StepFn
from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.layers import Attend, PrefixKV


@dataclass(eq=False)
class AutoregressiveState:
    """State of one request: keys and values of the prefix and the text.

    `tokens` and `features` [1, n, H] are pairs that are not in the cache yet; `output` [1, 1 + masks, H] is the head's
    output at the last pair in the cache, entry number `length`, and at the masks behind it. Entry i has the position
    `i + shift`; `global_feature` [1, 1, H] is the prefix's.
    """

    cache: KVCache
    tokens: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    output: Tensor | None = None
    length: int = 0
    shift: int = 0
    global_feature: Tensor | None = None


class AutoregressiveDrafter(HeadDrafter[AutoregressiveState]):
    """Drafts with an autoregressive head, one pass a depth; arguments as in `HeadDrafter`."""

    head: Autoregressive

    def __init__(self, head: Autoregressive, grow: Grow, ends: Sequence[int] = (), banned: Sequence[int] = ()) -> None:
        super().__init__(head, grow, ends, banned)
        self.min_positions = head.masks

    def update(
        self, state: HeadDrafterState[AutoregressiveState], output: VerifyOutput, hidden: dict[int, Tensor]
    ) -> None:
        tokens = output.tokens
        if output.prompt is not None:
            tokens = (*output.prompt.tokens[1:], *tokens)
            room = len(output.prompt.tokens) + state.max_tokens + max(SPARE, self.head.masks)
            state.head_state = self._new_state(self._prefix(output.prompt), room)
        own = state.head_state
        if own is not None:
            own.tokens += tokens
            own.features.append(self.head.fuse(hidden))

    def step_fn(self, head_state: AutoregressiveState) -> StepFn:
        own = head_state
        own.cache.truncate(0, own.length)
        output = self._read(own) if own.features or own.output is None else own.output
        if not self.head.masks:
            return AutoregressiveStep(self.head, own, output)
        logits = self.head.logits(output[0])
        return lambda nodes, tokens, parents, depth: logits[depth].expand(len(nodes), -1)

    def _new_state(self, prefix: PrefixKV | None, room: int) -> AutoregressiveState:
        cache, length = KVCache(self.head.cache_layers), 0 if prefix is None else len(prefix)
        cache.add_row(length + room)
        if prefix is None:
            return AutoregressiveState(cache)
        if length:
            cache.open_window(SLOT, length)
            key = self.head.rotary(upcast_on_cpu(prefix.key), prefix.positions)
            cache.update(key, upcast_on_cpu(prefix.value), 0)
            cache.advance(0, length)
        shift = prefix.start - length
        return AutoregressiveState(cache, length=length, shift=shift, global_feature=prefix.global_feature)

    def _prefix(self, prompt: PromptFeatures) -> PrefixKV | None:
        """Compute the visual prefix, if the head has one and the prompt is visual."""
        if not self.head.visual_reads or not prompt.visual_tokens:
            return None
        visual = {layer: rows[None].to(self.head.embeddings.dtype) for layer, rows in prompt.visual.items()}
        ids = torch.tensor([[*prompt.visual_tokens, prompt.tokens[0]]], device=self.head.draft_ids.device)
        return self.head.prefix(visual, ids)

    def _read(self, own: AutoregressiveState) -> Tensor:
        """Run one pass over the pairs since the last draft, and the masks behind them.

        Returns:
            The outputs [1, 1 + masks, H] at the last pair and at the masks, which do not stay in the cache.
        """
        embeds = self.head.embed(torch.tensor([own.tokens], device=self.head.draft_ids.device))
        features = self.head.add_global(torch.cat(own.features, 1), own.global_feature)
        masks = self.head.masks
        if masks:
            masked = zip((embeds, features), self.head.mask_pair(), strict=True)
            embeds, features = (torch.cat((rows, mask.expand(1, masks, -1)), 1) for rows, mask in masked)

        def layers(attend: Attend) -> Tensor:
            return self.head.decode(embeds, features, attend, 0)

        outputs = extend_text(own.cache, self.head.rotary, embeds.shape[1], layers, own.shift)
        last = own.output = outputs[:, -1 - masks :]
        own.length = own.cache.lengths[0] - masks
        own.tokens, own.features = [], []
        return last


class AutoregressiveStep:
    """`StepFn` of one draft, which keeps outputs and cache entries of its nodes."""

    def __init__(self, head: Autoregressive, state: AutoregressiveState, output: Tensor) -> None:
        self.head, self.state = head, state
        self.outputs = [output]  # [1, m, H] each: of the root, then of each depth's nodes
        self.rows = {ROOT: 0}  # node -> row of `outputs`
        self.count = 0  # number of nodes so far
        # [1 + count, count] nodes that each row attends to; `None` while the nodes are a chain.
        self.mask: Tensor | None = None

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int], depth: int) -> Tensor:
        if depth == 0:
            return self.head.logits(self.outputs[0][0])
        own, count, device = self.state, len(nodes), self.outputs[0].device
        mask, features = self._behind([self.rows[parent] for parent in parents])
        own.cache.reserve(own.cache.lengths[0] + count)
        own.cache.open_window(SLOT, count)
        positions = torch.full((count,), own.shift + own.length - 1 + depth, device=device)
        attend = CachedAttention(own.cache, self.head.rotary, positions, mask, own.length)
        embeds = self.head.embed(torch.tensor([tokens], device=device))
        features = self.head.add_global(self.head.fed_back(features), own.global_feature)
        outputs = self.head.decode(embeds, features, attend, depth)
        own.cache.advance(0, count)
        self.rows |= {node: row for row, node in enumerate(nodes, 1 + self.count)}
        self.outputs.append(outputs)
        self.count += count
        return self.head.logits(outputs[0])

    def _behind(self, parents: Sequence[int]) -> tuple[Tensor | None, Tensor]:
        """Return the mask for children of these rows (`None` = all keys), and their parents' outputs [1, m, H]."""
        if self.mask is None and len(parents) == 1 and parents[0] == self.count:
            return None, self.outputs[-1][:, -1:]  # a chain needs no masks
        device, count = self.outputs[0].device, len(parents)
        if self.mask is None:  # the nodes so far are a chain
            self.mask = torch.ones(1 + self.count, self.count, dtype=torch.bool, device=device).tril_(-1)
        outputs = torch.cat(self.outputs, 1)
        self.outputs = [outputs]
        rows = torch.tensor(parents, device=device)
        mask = torch.cat((self.mask[rows], torch.eye(count, dtype=torch.bool, device=device)), 1)
        self.mask = torch.cat((F.pad(self.mask, (0, count)), mask), 0)
        text = torch.ones(count, self.state.length, dtype=torch.bool, device=device)
        return torch.cat((text, mask), 1), outputs[:, rows]
