"""Drafting with MTP layers: as with an autoregressive head, but the whole prompt is read, with its images and clips."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import VerifyOutput
from crossdraft.heads.drafting.attention import SLOT, CachedAttention
from crossdraft.heads.drafting.autoregressive import AutoregressiveDrafter, AutoregressiveState
from crossdraft.heads.drafting.head_drafter import HeadDrafterState
from crossdraft.heads.mtp.network import Mtp
from crossdraft.heads.networks.layers import PrefixKV


@dataclass(eq=False)
class MtpState(AutoregressiveState):
    """State of one request.

    Until the prompt is read, `shown` [1, N - 1, H] are the embeddings of its visual piece behind the first token, with
    visual features, and `positions` [axes, L] or [L] its positions, if they are not 0, 1, 2, ….
    """

    shown: Tensor | None = None
    positions: Tensor | None = None


class MtpDrafter(AutoregressiveDrafter):
    """Drafts with the target's MTP layers, one pass a depth; arguments as in `HeadDrafter`.

    The pair of a feature and the token after it has the feature's position, as where the layers are trained.
    """

    head: Mtp  # pyright: ignore[reportIncompatibleVariableOverride]

    def update(
        self, state: HeadDrafterState[AutoregressiveState], output: VerifyOutput, hidden: dict[int, Tensor]
    ) -> None:
        prompt, shown, last = output.prompt, None, self.head.config.num_layers
        if prompt is None:
            return super().update(state, output, hidden)
        if ids := prompt.visual_tokens:
            front = {layer: rows[None].to(hidden[last]) for layer, rows in prompt.visual.items()}
            shown, hidden = front[0][:, 1:], {last: torch.cat((front[last], hidden[last]), 1)}
        ids = (*ids, *prompt.tokens)
        super().update(state, replace(output, prompt=replace(prompt, tokens=ids, visual_tokens=())), hidden)
        own = cast("MtpState", state.head_state)
        own.shown, own.positions = shown, prompt.positions
        own.shift = 0 if prompt.positions is None else int(prompt.positions.max()) + 1 - len(ids)
        return None

    def _new_state(self, prefix: PrefixKV | None, room: int) -> MtpState:
        cache = KVCache(self.head.cache_layers)
        cache.add_row(room)
        return MtpState(cache)

    def _read(self, own: AutoregressiveState) -> Tensor:
        state, cache, count, past = cast("MtpState", own), own.cache, len(own.tokens), own.cache.lengths[0]
        embeds = self.head.embed(torch.tensor([own.tokens], device=self.head.draft_ids.device))
        if state.shown is not None:
            embeds[:, : state.shown.shape[1]] = state.shown
        positions = torch.arange(past, past + count, device=embeds.device) + own.shift
        if (given := state.positions) is not None:
            positions = positions.expand(*given.shape[:-1], -1).clone()
            positions[..., : given.shape[-1]] = given.to(embeds.device)
        cache.open_window(SLOT, count)
        attend = CachedAttention(cache, self.head.rotary, positions, None)
        own.output = self.head.read(embeds, torch.cat(own.features, 1), own.output, attend)[:, -1:]
        cache.advance(0, count)
        state.shown = state.positions = None
        own.length, own.tokens, own.features = cache.lengths[0], [], []
        return own.output
