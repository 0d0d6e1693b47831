"""Adapters on the vision side: features of an event encoder in, some of the target's visual tokens out.

    event encoder    [T, P, S]   T event frames of P patches
    adapter          [K, H]      K = frames · tokens: the target's visual tokens of some frames of the clip
    target           reads them in place of the N visual tokens of the whole clip

Predicted are tokens in the form in which the target's language model reads them, after its projector: of frames evenly
spread over the clip, with all their tokens. Means of several tokens are not of that form, and a target may not
understand them.

The text after the clip keeps the position that it has after all N tokens, and the K tokens are spread over the N
positions (`spread`): the model was trained with text at that distance.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.specs import Count

HEAD_DIM = 64  # for attention among predicted tokens


@dataclass(frozen=True, kw_only=True)
class VisionConfig(HeadConfig):
    """Settings of every adapter on the vision side; `hidden_size`, `vocab_size` and `num_layers` are the target's.

    Args:
        drafter: fingerprint of the event model whose encoder it reads.
        source_size, source_frames, source_tokens: S, T and P.
        frames: number of frames of the clip that are predicted.
        tokens: number of tokens of each predicted frame.
        length: N, number of visual tokens of the whole clip.
        scale: standard deviation of the target's visual tokens from their mean over clips.

    Raises:
        CrossdraftError: as `HeadConfig`, more tokens are predicted than a clip has, or `scale` is not above 0.
    """

    drafter: str
    source_size: Count
    source_frames: Count
    source_tokens: Count
    tokens: Count
    length: Count
    frames: Count = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predicted > self.length:
            raise CrossdraftError(
                f"An adapter predicts {self.frames} frames of {self.tokens} tokens of a clip that has {self.length}; "
                "let it predict fewer frames."
            )
        if not 0 < self.scale < math.inf:
            raise CrossdraftError(f"The scale of visual tokens must be a positive number; it is {self.scale}.")

    @property
    def predicted(self) -> int:
        """K, the number of predicted tokens."""
        return self.frames * self.tokens


class VisionAdapter(Head):
    """scale · (mean + f(X)), where `mean` [K, H] is the mean over clips; subclasses define f, `deviation`."""

    config_class = VisionConfig
    config: VisionConfig
    owns_head = False

    def __init__(self, config: VisionConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.register_buffer("embeddings", self.embeddings[:0], persistent=False)
        self.mean = nn.Parameter(torch.zeros(config.predicted, config.hidden_size))

    @property
    def reads(self) -> tuple[int, ...]:
        return ()

    @torch.no_grad()
    def begin_at(self, tokens: Tensor) -> None:
        """Set `mean` to the mean of the target's visual tokens [clips, K, H] of some clips."""
        self.mean.copy_(tokens.mean(0) / self.config.scale)

    def predict(self, source: Tensor) -> Tensor:
        """Features [B, T, P, S] of the event encoder -> [B, K, H] visual tokens of the target."""
        return self.config.scale * (self.mean + self.deviation(source))

    def deviation(self, source: Tensor) -> Tensor:
        """Return f(X) of the class's formula: [B, T, P, S] -> [B, K, H]."""
        raise NotImplementedError


class LinearVision(VisionAdapter):
    """A·X·W: a mixture of all patches, one for each predicted token, and a linear map."""

    def __init__(self, config: VisionConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.mix = nn.Linear(config.source_frames * config.source_tokens, config.predicted, bias=False)
        self.project = nn.Linear(config.source_size, config.hidden_size)

    def mixed(self, source: Tensor) -> Tensor:
        """[B, T, P, S] -> [B, K, S]."""
        return self.mix(source.flatten(1, 2).transpose(1, 2)).transpose(1, 2)

    def deviation(self, source: Tensor) -> Tensor:
        return self.project(self.mixed(source))


@dataclass(frozen=True, kw_only=True)
class VisionWidthConfig(VisionConfig):
    """Settings of an adapter with an inner layer of `width`."""

    width: Count


class MLPVision(LinearVision):
    """`LinearVision` plus out(GELU(up(A·X))); `out` is zero at first."""

    config_class = VisionWidthConfig

    def __init__(self, config: VisionWidthConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.up_proj = nn.Linear(config.source_size, config.width)
        self.out_proj = nn.Linear(config.width, config.hidden_size)
        nn.init.zeros_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def deviation(self, source: Tensor) -> Tensor:
        mixed = self.mixed(source)
        return self.project(mixed) + self.out_proj(F.gelu(self.up_proj(mixed)))


@dataclass(frozen=True, kw_only=True)
class QueriesConfig(VisionWidthConfig):
    """Width and number of layers of the learned queries.

    Raises:
        CrossdraftError: as `HeadConfig`, or the width is no multiple of 64.
    """

    layers: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % HEAD_DIM:
            raise CrossdraftError(f"The width of queries must be a multiple of {HEAD_DIM}; {self.width} is none.")


class QueriesVision(VisionAdapter):
    """Learned queries that attend to the event features and to one another (Q-Former: Li et al. 2023)."""

    config_class = QueriesConfig

    def __init__(self, config: QueriesConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        width = config.width
        self.source_norm = nn.LayerNorm(config.source_size)
        self.source_proj = nn.Linear(config.source_size, width)
        self.places = nn.Parameter(torch.randn(config.source_frames * config.source_tokens, width) * 0.02)
        self.queries = nn.Parameter(torch.randn(config.predicted, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(
                width, width // HEAD_DIM, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.out_proj = nn.Linear(width, config.hidden_size)

    def deviation(self, source: Tensor) -> Tensor:
        memory = self.source_proj(self.source_norm(source.flatten(1, 2))) + self.places
        rows = self.queries.expand(len(source), -1, -1)
        for layer in self.layers:
            rows = layer(rows, memory)
        return self.out_proj(self.norm(rows))


def spread(count: int, length: int) -> Tensor:
    """Positions [count], evenly spread over 0 … length - 1, for tokens that replace `length` others.

    >>> spread(3, 12).tolist(), spread(4, 4).tolist()
    ([2, 6, 10], [0, 1, 2, 3])
    """
    return (2 * torch.arange(count) + 1) * length // (2 * count)
