"""The settings of the laboratory's drafters; see `crossdraft.drafters.settings`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from crossdraft.drafters.settings import Layers, Words
from crossdraft.specs import Count, Limit, Share


@dataclass(frozen=True)
class IidSettings:
    """Independent draws behind each node."""

    width: Count = 2


@dataclass(frozen=True)
class GuidedSettings:
    """The drafting model; share of the visual tokens that it reads; share of their attention that comes first."""

    dir: str | None = None
    keep: Share = 0.1
    mass: Share = 0.4
    layers: Layers | None = None


@dataclass(frozen=True)
class PartialSettings:
    """Blocks of 16 keys that are kept: the first ones, those that answer the question best, the last ones."""

    sinks: Count = 2
    blocks: Count = 8
    window: Count = 4


@dataclass(frozen=True)
class AlignedSettings:
    """The adapter's folder, the event model that it reads, and top-k tokens of a position.

    `alone` is how many tokens the adapter drafts by itself after each pass of the event model (l5 and b1 can).
    """

    dir: Path | None = None
    model: str = "event"
    words: Words | None = None
    alone: Annotated[int, Limit("0 or more", lambda value: value >= 0)] = 0


@dataclass(frozen=True)
class PredictedSettings:
    """The adapter's folder, the event model whose encoder it reads, and top-k tokens of a position."""

    dir: Path | None = None
    model: str = "event"
    words: Words | None = None


@dataclass(frozen=True)
class OnlineSettings:
    """Seconds of training that each round earns; newest answers kept; learning rate; where weights are saved."""

    seconds: float = 0.005
    keep: Count = 64
    rate: float = 2e-4
    save: Path | None = None
