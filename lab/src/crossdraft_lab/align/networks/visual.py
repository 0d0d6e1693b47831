"""`l4v`: `l4` behind cross-attention to the target's visual features of a few frames.

An event camera records no colour, and a drafter that never saw the target's answers cannot name what it does not see.
The target's vision encoder ends long before its prefill does, so the draft is still hidden. The cross-attention is
`glance`'s layer (`heads.glance.network`) in front of an adapter; the `ParallelPrefillAdapter` of the project
xifan-zhang/EventGPT was planned as an MLP with such an attention, and never run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.heads.glance.network import GlanceConfig, GlanceLayer, check_visual
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import KeyValue, TTTAttention
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.specs import Count
from crossdraft_lab.align.networks.attention import AttentionAdapter, AttentionConfig, PastAttention, Unrotated
from crossdraft_lab.align.networks.base import TARGET, Past


@dataclass(frozen=True, kw_only=True)
class VisualConfig(AttentionConfig):
    """Settings of `l4v`.

    Args:
        visual_size: E, width of the target's visual features.
        frames: number of frames that are read, evenly spread over those that the target reads.
        patches: n, number of features of a frame.
        cross_layers: number of layers of cross-attention.
    """

    visual_size: Count
    frames: Count = 3
    patches: Count
    cross_layers: Count = 1

    @property
    def glance(self) -> GlanceConfig:
        """Config of the cross-attention."""
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
    """`l4` behind cross-attention to visual features; the cross-attention is the identity at first."""

    config_class = VisualConfig
    extras = ("contrastive",)
    config: VisualConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: VisualConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.cross = nn.ModuleList([GlanceLayer(config.glance) for _ in range(config.cross_layers)])

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return (0,)

    def keys_values(self, visual: Tensor) -> list[KeyValue]:
        """Convert the vision encoder's features of the frames, [B, F · n, E], into each layer's keys and values.

        Raises:
            CrossdraftError: as `check_visual`.
        """
        check_visual(visual, self.config.glance)
        return [layer.keys_values(visual.to(self.embeddings)) for layer in self._cross]

    def align(
        self, source: Tensor, tokens: Tensor, past: Past = (), visual: Sequence[KeyValue] = ()
    ) -> tuple[Tensor, Past]:
        """Align as `Adapter.align` does; `visual` comes from `keys_values`; if empty, no frame is seen."""
        attend = PastAttention(past)
        return self.run(self._seen(source, visual), attend), tuple(attend.new)

    def forward(self, batch: TrainBatch) -> list[DraftLogits]:
        visual = self.keys_values(batch.visual[0]) if batch.visual else ()
        rows = self._seen(self.source(batch.hidden), visual)
        return [self.prediction(0, self.run(rows, TTTAttention(Unrotated()).at(0)))]

    def extra_losses(self, batch: TrainBatch, predictions: Sequence[DraftLogits]) -> dict[str, Tensor]:
        """`contrastive`: pulls together events, images and texts of one answer, against the others of the batch.

        Images are left out where a step sees no frame.
        Events are the mean of the predictions along the answer, texts that of the target's features, images that of the
        first layer's values. The loss is the mean of `clip_loss` over pairs; answers about one clip share its image.
        """
        asked = batch.loss_mask(0)[..., None].float()
        features = cast("Tensor", predictions[0].features), batch.hidden[TARGET]
        events, texts = ((rows.float() * asked).sum(1) / asked.sum(1).clamp(min=1) for rows in features)
        own = torch.eye(len(texts), dtype=torch.bool, device=texts.device)
        pairs = [clip_loss(events, texts, own)]
        if batch.visual:
            images = self.keys_values(batch.visual[0])[0][1].mean(2).flatten(1).float()
            clips = batch.visual[0].mean(1)
            same = (clips[:, None] == clips[None]).all(-1)
            pairs += clip_loss(events, images, same), clip_loss(images, texts, same)
        return {"contrastive": torch.stack(pairs).mean()}

    def _seen(self, source: Tensor, visual: Sequence[KeyValue]) -> Tensor:
        rows = self.project(source)
        for layer, keys_values in zip(self._cross, visual, strict=bool(visual)):
            rows = layer(rows, keys_values)
        return rows

    @property
    def _cross(self) -> Sequence[GlanceLayer]:
        return cast("Sequence[GlanceLayer]", self.cross)


def clip_loss(one: Tensor, other: Tensor, same: Tensor) -> Tensor:
    """InfoNCE in both directions, as CLIP trains (Radford et al. 2021), with τ = 0.07.

    Args:
        one, other: embeddings, [B, H] each.
        same: [B, B] true for pairs that belong together; with several partners the mean is taken (Khosla et al. 2020).
    """
    scores = F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).T / 0.07
    losses = [-torch.where(same, scores.log_softmax(dim), 0).sum(dim) / same.sum(dim) for dim in (0, 1)]
    return torch.cat(losses).mean()
