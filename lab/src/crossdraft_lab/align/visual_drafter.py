"""`aligned` with `l4v`: an adapter that also reads the target's visual features, before the target's prefill ends."""

from torch import Tensor

from crossdraft.engine.drafter import Needs
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.heads.glance.frame_encoder import check_encodes, frame_features
from crossdraft_lab.align.drafter import PLAIN, AlignedDrafter, AlignedOptions, AlignedState
from crossdraft_lab.align.networks.base import Past
from crossdraft_lab.align.networks.visual import VisualAdapter


class VisualDrafter(AlignedDrafter):
    """Drafter with the adapter `l4v`; arguments and errors as in `AlignedDrafter`.

    Outside the target's process the features of the frames come with the request; see `Needs.visual`.
    """

    adapter: VisualAdapter

    def __init__(self, model: Target, adapter: VisualAdapter, options: AlignedOptions = PLAIN) -> None:
        super().__init__(model, adapter, options)
        check_encodes(options.host)
        self.target = options.host
        self.needs = Needs(video=options.host is not None, visual=options.host is None)

    def _see(self, state: AlignedState, request: Request) -> None:
        config = self.adapter.config
        features = frame_features(request, config.frames, config.patches, self.target)
        state.frame_kv = self.adapter.keys_values(features[None])

    def _align(self, state: AlignedState, source: Tensor, tokens: Tensor, past: Past) -> tuple[Tensor, Past]:
        return self.adapter.align(source, tokens, past, state.frame_kv)
