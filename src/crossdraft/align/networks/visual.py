"""`l4v`: `l4` behind cross-attention to the target's visual features of a few frames.

An event camera records no colour, and a drafter that never saw the target's answers has no word for what it does not
see. The target's vision encoder is done long before its prefill ends, so what is drafted is still hidden. This is
`glance`'s layer (`heads.glance.network`) in front of an adapter; the `ParallelPrefillAdapter` of the project
xifan-zhang/EventGPT was planned as an MLP with such an attention, and never run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from crossdraft.align.networks.attention import AttentionAdapter, AttentionConfig, PastAttention, Unrotated
from crossdraft.align.networks.base import Past
from crossdraft.heads.glance.network import GlanceConfig, GlanceLayer, check_visual
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import KeyValue, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class VisualConfig(AttentionConfig):
    """`l4v`.

    Args:
        visual_size: E, of the target's visual features.
        frames: how many frames are read, evenly spread over those that the target reads.
        patches: n, features of a frame.
        cross_layers: layers of cross-attention.
    """

    visual_size: Count
    frames: Count = 3
    patches: Count
    cross_layers: Count = 1

    @property
    def glance(self) -> GlanceConfig:
        """Of the cross-attention."""
        return GlanceConfig(
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            draft_ids=self.draft_ids,
            tower="",
            visual_size=self.visual_size,
            frames=self.frames,
            patches=self.patches,
            layers=self.cross_layers,
            heads=self.heads,
            intermediate_size=self.intermediate_size,
        )


class VisualAdapter(AttentionAdapter):
    """See the module's text. The cross-attention is the identity at first."""

    config_class = VisualConfig
    config: VisualConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: VisualConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.cross = nn.ModuleList([GlanceLayer(config.glance) for _ in range(config.cross_layers)])

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return (0,)

    def keys_values(self, visual: Tensor) -> list[KeyValue]:
        """[B, frames · n, E] the vision encoder's features of the frames -> each layer's keys and values.

        Raises:
            CrossdraftError: as `check_visual`.
        """
        check_visual(visual, self.config.glance)
        return [layer.keys_values(visual.to(self.embeddings)) for layer in self._cross]

    def align(
        self, source: Tensor, tokens: Tensor, past: Past = (), visual: Sequence[KeyValue] = ()
    ) -> tuple[Tensor, Past]:
        """As `Adapter.align`; `visual` are `keys_values`, without which it sees nothing of the frames."""
        attend = PastAttention(past)
        return self.run(self._seen(source, visual), attend), tuple(attend.new)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        visual = self.keys_values(batch.visual[0]) if batch.visual else ()
        rows = self._seen(self.source(batch.hidden), visual)
        return [self.prediction(0, self.run(rows, TTTAttention(Unrotated()).at(0)))]

    def _seen(self, source: Tensor, visual: Sequence[KeyValue]) -> Tensor:
        rows = self.project(source)
        for layer, keys_values in zip(self._cross, visual, strict=bool(visual)):
            rows = layer(rows, keys_values)
        return rows

    @property
    def _cross(self) -> Sequence[GlanceLayer]:
        return cast("Sequence[GlanceLayer]", self.cross)
