"""The recipe of a head: its network, shape, losses and training settings.

A recipe states a method (number of unrolled steps, losses). Widths, attention heads and the layers that are read depend
on the target, so a recipe leaves them out, or sets them to `null`, and `sizes.sizes_of` fills them in.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import HeadConfig
from crossdraft.heads.networks.dflash import DFlashConfig
from crossdraft.heads.networks.eagle3 import Eagle3Config
from crossdraft_lab.train.core.recipe import Optim, Section, read_section

MAY_CHANGE = {"checkpoint_every", "watch", "patience", "accumulate", "parallel"}  # in `Optim`, when resuming
RECIPES = Path(__file__).parents[1] / "recipes" / "heads"


class Vocabulary(Section):
    """Token ids that the head can draft: ids that occur in the captured answers."""

    most: int = Field(default=0, ge=0, description="only the most frequent of them; 0: all")


class Measure(Section):
    """Drafting with the finished head under the real engine, on validation clips."""

    pairs: int = Field(default=24, ge=0, description="answers; 0: none")
    nodes: int = Field(default=60, gt=0, description="of a tree")
    chain: int = Field(default=5, gt=0, description="tokens of a chain")
    depth: int = Field(default=6, gt=0, description="levels at which drafted tokens are counted by rank")
    ranks: int = Field(default=5, gt=0, description="tokens of a level that are counted")


class TrainingRecipe(Section):
    """Settings of every training of a drafter on a target's answers."""

    seed: int = 0
    threads: int = Field(default=2, gt=0)
    optim: Optim = Field(description="`clips` counts answers")
    measure: Measure = Measure()


class HeadRecipe(TrainingRecipe):
    """All settings of `crossdraft train METHOD` for a head."""

    network: str
    config: dict[str, Any] = Field(
        default={}, description="the network's settings; what is left out or null is the target's own"
    )
    loss: dict[str, float] = Field(min_length=1, description="losses by name, and their weights")
    step_weight: float = Field(default=1.0, gt=0, le=1, description="weight of a step, relative to the one before")
    noise: float = Field(default=0.0, ge=0, description="uniform noise on features, in their standard deviations")
    feature_steps: int = Field(
        default=0, ge=0, description="of an adapter on the vision side: first steps in which only features are compared"
    )
    vocabulary: Vocabulary = Vocabulary()


def recipe_names() -> list[str]:
    """Names of the shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_head_recipe(source: str | Path, overrides: Sequence[str] = (), *, reference: bool = False) -> HeadRecipe:
    """Load a shipped recipe by name, or one from a file, with `dotted.key=value` overrides.

    Args:
        source: name of a shipped recipe, or path of a YAML file.
        overrides: overrides, applied last.
        reference: true if the head is for the shipped reference pair, which is smaller than any other: then its
            recipe's section `reference` overrides the rest.

    Raises:
        CrossdraftError: as `train.core.recipe.read_section`, or there is no such recipe.
    """
    path = Path(source) if Path(source).suffix else RECIPES / f"{source}.yaml"
    if not Path(source).suffix and not path.is_file():
        raise CrossdraftError(f"There is no recipe '{source}'; choose among {', '.join(recipe_names())}.")
    return read_section(HeadRecipe, path, overrides, ("reference", reference))


def levels_read(kind: type[HeadConfig], settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The target's hidden states that a network fuses and scales; empty where it has no scales."""
    name = "levels" if issubclass(kind, Eagle3Config) else "read_layers"
    fuses = issubclass(kind, Eagle3Config | DFlashConfig)
    return tuple(settings[name]) if fuses else ()


def scales_of(hidden: Mapping[int, Tensor], lengths: Sequence[int], levels: Sequence[int]) -> list[float]:
    """Compute 1 / root mean square of each level, to two digits; see `networks.layers.concat_layers`.

    Args:
        hidden: features [B, T, H] by layer.
        lengths: tokens of each answer, B of them; features after an answer's end do not count.
        levels: layers to compute it for.
    """
    scales = []
    for level in levels:
        rows = [features[: length - 1].float() for features, length in zip(hidden[level], lengths, strict=True)]
        squares = sum(float(row.square().sum()) for row in rows)
        count = sum(row.numel() for row in rows)
        size = math.sqrt(squares / count) if count else 0.0
        scales.append(float(f"{1 / size:.2g}") if size > 0 else 1.0)
    return scales
