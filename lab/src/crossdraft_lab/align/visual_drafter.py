"""`aligned` with `l4v`: an adapter that also reads the target's visual features, long before its prefill ends.

One that has learned to read with fewer frames (`frames_dropped`) waits for none of them: it drafts with those that have
come. When more have, the adapter (one layer, not the event model) reads anew all that stands before its next token, and
goes on as if it had seen them from the beginning. Until the target has said anything, it drafts again, too: what it had
drafted are candidates, which the event model reads in one pass, and which stay as far as it still says the same.

A token that was drawn with random numbers of the drafter's own (`Draws`) is never drawn anew: whether a frame comes in
time may depend on what was drawn (a short draft is handed over before it, a long one is not), and tokens that are sent
because of their values follow another distribution than the one sent with them. So where tokens are drawn like that,
the first of them fixes the frames of the hidden draft; later ones are taken up once the target has answered.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.drafters.independent import IndependentState
from crossdraft.engine.drafter import Budget, Draft, Needs
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.heads.glance.frame_encoder import check_encodes, frame_features
from crossdraft_lab.align.drafter import PLAIN, AlignedDrafter, AlignedOptions, AlignedState
from crossdraft_lab.align.networks.base import Past
from crossdraft_lab.align.networks.visual import VisualAdapter


@dataclass(eq=False)
class VisualState(AlignedState):
    """One answer. `arriving` are features that have come or will, while frames are missing (`ArrivedFeatures.first`).

    `frames` counts those that `frame_kv` is of; `sources` [n, S] is what the adapter read of the event model so far;
    `shown` are the tokens that whoever watches has been told before the target said anything.
    """

    arriving: Any = None
    frames: int = 0
    sources: Tensor = field(default_factory=lambda: torch.empty(0))
    shown: list[int] = field(default_factory=list)

    @property
    def drawn(self) -> bool:
        """True if tokens were sampled before the target's first one: then no frames are taken up."""
        return bool(self.dists) and not self.committed


class VisualDrafter(AlignedDrafter):
    """See the module's text; arguments and errors as in `AlignedDrafter`.

    Outside the target's process the features of the frames come with the request, see `Needs.visual`. Where none ever
    come, as at an edge or of a question without a clip, only an adapter that waits for none of them drafts.
    """

    adapter: VisualAdapter
    state_class = VisualState

    def __init__(self, model: Target, adapter: VisualAdapter, options: AlignedOptions = PLAIN) -> None:
        super().__init__(model, adapter, options)
        check_encodes(options.host)
        config, here = adapter.config, options.host is not None
        self.target = options.host
        self.waits = here or not config.frames_dropped
        self.needs = Needs(
            video=here, visual=self.waits and not here, visual_frames=() if self.waits else (config.frames,)
        )

    def _see(self, state: AlignedState, request: Request) -> None:
        state, config = cast("VisualState", state), self.adapter.config
        if self.waits:
            features = frame_features(request, config.frames, config.patches, self.target)
            state.frame_kv = self.adapter.keys_values(features[None])
            return
        state.arriving = request.visual_features
        self._take_up(state)
        self._forget_if_complete(state)

    def _take_up(self, state: VisualState) -> bool:
        """See the frames, too, that have come since; whether any have."""
        if state.arriving is None:
            return False
        config = self.adapter.config
        come = state.arriving.first(config.frames, config.patches)[state.frames :]
        if come:
            new = self.adapter.keys_values(torch.cat(come)[None], state.frames)
            old = state.frame_kv or [(key[:, :, :0], value[:, :, :0]) for key, value in new]
            state.frame_kv = [
                (torch.cat((key, k), 2), torch.cat((value, v), 2))
                for (key, value), (k, v) in zip(old, new, strict=True)
            ]
            state.frames += len(come)
        return bool(come)

    def _align(self, state: AlignedState, source: Tensor, tokens: Tensor, past: Past) -> tuple[Tensor, Past]:
        state = cast("VisualState", state)
        if state.arriving is not None:
            state.sources = torch.cat((state.sources[: past[0][0].shape[2]], source[0])) if past else source[0]
        return self.adapter.align(source, tokens, past, state.frame_kv)

    def _propose(self, state: IndependentState, budget: Budget) -> Draft:
        """As ever; but what is done before the target has said anything is drafted again with frames still to come."""
        state = cast("VisualState", state)
        self._see_more(state)
        draft = super()._propose(state, budget)
        while state.arriving is not None and not state.committed and budget.stop is not None and not budget.stopped:
            if state.drawn:
                break
            if self._see_more(state):
                draft = super()._propose(state, budget)
            elif not state.arriving.wait():
                break
        return draft

    def _write(self, state: IndependentState, most: int) -> list[int]:
        """The tokens that are new to whoever watches; none where the draft is another than the one that was shown."""
        state = cast("VisualState", state)
        self._see_more(state)
        new = super()._write(state, most)
        if state.committed:
            return new
        shown, pending = state.shown, state.pending
        if pending[: len(shown)] != shown:
            return []
        state.shown = pending
        return pending[len(shown) :]

    def _see_more(self, state: VisualState) -> bool:
        """Go on with the frames, too, that have come since; whether any have, and may be taken up now."""
        if state.drawn or not self._take_up(state):
            return False
        if not state.committed:
            state.reuse = state.reuse.rejected(state.pending)
            state.drafted.clear()
            state.dists.clear()
            state.cache.truncate(0, len(state.prompt))
            state.fed = []
        self._read_anew(state)
        return True

    def _read_anew(self, state: VisualState) -> None:
        """The adapter reads what the event model has read of text and answer, with the frames that are here now."""
        tokens = [*state.prompt[-state.text :], *state.fed]
        ids = torch.tensor([tokens], device=state.sources.device)
        outputs, state.past = self.adapter.align(state.sources[None, : len(tokens)], ids, (), state.frame_kv)
        self.set_outputs(state, outputs[0, -1:])
        self._forget_if_complete(state)

    def _forget_if_complete(self, state: VisualState) -> None:
        """Stop waiting for frames once all are here; nothing will be read anew."""
        if state.frames == self.adapter.config.frames:
            state.arriving, state.sources = None, torch.empty(0)
