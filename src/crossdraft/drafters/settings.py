"""The settings of every drafter: types, defaults and limits of what may follow its name in a spec.

A default stands here alone: constructors take it from here. Nothing heavy is imported, so that a spec can be checked
before anything is loaded.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from crossdraft.specs import Count, Limit

WORDS = 3  # top-k tokens of one position that may become nodes of a draft

Words = Annotated[int, Limit(f"a whole number from 1 to {WORDS}", lambda value: 1 <= value <= WORDS)]
Layers = Annotated[tuple[int, ...], Limit("numbers of layers, such as 2+4", lambda value: min(value) >= 0)]
Leniency = Annotated[float, Limit("1 (exact) or more", lambda value: 1 <= value < math.inf)]
Bound = Annotated[float, Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Scale = Annotated[float, Limit("a number above 0", lambda value: 0 < value < math.inf)]
Divergence = Annotated[float, Limit("at least 0 and below ln 2 = 0.693", lambda value: 0 <= value < math.log(2))]


@dataclass(frozen=True)
class EventSettings:
    """Settings of an EventGPT: top-k tokens of a position in one pass, or a tree that takes a pass for each level.

    `counts` is a file of measured acceptance by rank for tree=sequoia; `how` bridges two vocabularies, as in
    `TextSettings`; `dir` is the model's folder. With `slices` it reads a whole recording as so many windows, of each
    the busiest `patches` (all): see `drafters.recordings`.
    """

    words: Words | None = None  # 1
    tree: Literal["dynamic", "cape", "sequoia"] | None = None
    counts: Path | None = None  # those of the reference pair
    how: Literal["slem", "tli", "omni"] | None = None
    dir: str | None = None
    slices: Count | None = None
    patches: Count | None = None


@dataclass(frozen=True)
class TextSettings:
    """The bridge between two vocabularies; none where they are the same, else `slem`."""

    how: Literal["slem", "tli", "omni"] | None = None


@dataclass(frozen=True)
class ModelSettings:
    """The model's folder, and how its vocabulary is bridged."""

    dir: str | None = None
    how: Literal["slem", "tli", "omni"] | None = None


@dataclass(frozen=True)
class NgramSettings:
    """Longest n-gram that is looked up, and most tokens that are copied for each one that matched."""

    longest: Count = 4
    copied: Count = 8


@dataclass(frozen=True)
class LookaheadSettings:
    """Columns of the window, length of an n-gram, n-grams kept for each first token.

    On a CPU each row of a pass costs; a large GPU has room for 7, 5, 7 and more.
    """

    window: Count = 4
    level: Count = 4
    grams: Count = 4


@dataclass(frozen=True)
class EdgeSettings:
    """Settings of an edge; `draws`: trust that it drew its tokens from the distributions it sends, see docs/edge.md."""

    draws: Literal["yes", "no"] = "no"


@dataclass(frozen=True)
class MemorySettings:
    """The folder where answers are kept (`None`: nowhere), and the number of tokens kept for each namespace.

    `seed` is known from the beginning: a folder of `crossdraft capture`, or a file of recorded answers.
    """

    folder: Path | None = None
    capacity: Count = 1 << 18
    seed: Path | None = None


@dataclass(frozen=True)
class ViewSettings:
    """Frames that the target sees when it drafts for itself."""

    frames: Count = 2


@dataclass(frozen=True)
class CascadeSettings:
    """Tokens of the cheaper drafter between two passes of the better one; where it goes on alone; how much is kept."""

    ahead: Count = 5
    early: Count | None = None
    leniency: Leniency = 1.0


@dataclass(frozen=True)
class PyramidSettings:
    """Tokens between two passes of the qualifier; largest Jensen-Shannon divergence, of the literature's 0.2 to 0.5."""

    ahead: Count = 5
    threshold: Divergence = 0.3


@dataclass(frozen=True)
class AdaEDLSettings:
    """Scale of the entropy; the least bound behind which a draft goes on, at first; the acceptance rate aimed at.

    `step` is how far the least bound is moved, a tenth of it each round.
    """

    gamma: Scale = 0.2
    threshold: Bound = 0.6
    acceptance: Bound = 0.9
    step: Bound = 0.01


@dataclass(frozen=True)
class HeadSettings:
    """The head's folder, and how its trees grow."""

    dir: Path | None = None
    tree: str | None = None


@dataclass(frozen=True)
class PassSettings:
    """The folder of the look-ahead embeddings."""

    dir: Path | None = None


@dataclass(frozen=True)
class EventHeadSettings:
    """The head's folder, the event model that it belongs to, and top-k tokens of a position."""

    dir: Path | None = None
    model: str = "event"
    words: Words | None = None


@dataclass(frozen=True)
class GlanceSettings:
    """The folder of the cross-attention, the model's Medusa heads, the model, and top-k tokens of a position."""

    dir: Path | None = None
    heads: Path | None = None
    model: str = "event"
    words: Words | None = None
