"""The recipe of a head: which network, of which shape, what it is trained for, and how."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from crossdraft.errors import CrossdraftError
from crossdraft.train.core.recipe import Optim, Section, read_section

RECIPES = Path(__file__).parents[1] / "recipes" / "heads"


class Vocabulary(Section):
    """Which ids the head drafts: those that the captured answers are made of."""

    most: int = Field(default=0, ge=0, description="only the most frequent of them; 0: all")


class Measure(Section):
    """Drafting with the finished head under the real engine, on validation clips."""

    pairs: int = Field(default=24, ge=0, description="answers; 0: none")
    nodes: int = Field(default=60, gt=0, description="of a tree")
    chain: int = Field(default=5, gt=0, description="tokens of a chain")
    depth: int = Field(default=6, gt=0, description="levels at which guesses are counted by rank")
    ranks: int = Field(default=5, gt=0, description="guesses of a level that are counted")


class HeadRecipe(Section):
    """Everything that `crossdraft train METHOD` does with a head."""

    network: str
    config: dict[str, Any] = Field(
        default={}, description="the network's settings; what is left out or null is the target's own"
    )
    loss: dict[str, float] = Field(min_length=1, description="losses by name, and their weights")
    step_weight: float = Field(default=1.0, gt=0, le=1, description="weight of a guess, relative to the one before")
    noise: float = Field(default=0.0, ge=0, description="uniform noise on features, in their standard deviations")
    seed: int = 0
    threads: int = Field(default=2, gt=0)
    vocabulary: Vocabulary = Vocabulary()
    optim: Optim = Field(description="`clips` counts answers")
    measure: Measure = Measure()


def recipe_names() -> list[str]:
    """Heads that come with a recipe."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_head_recipe(source: str | Path, overrides: Sequence[str] = (), *, reference: bool = False) -> HeadRecipe:
    """A shipped recipe by name, or one from a file, with `dotted.key=value` overrides.

    Args:
        source: a shipped recipe's name, or a YAML file.
        overrides: applied last.
        reference: whether the head is for the shipped reference pair, which is smaller than any other: then the
            recipe's section `reference` replaces what it names.

    Raises:
        CrossdraftError: as `train.recipe.load_recipe`; or there is no such recipe.
    """
    path = Path(source) if Path(source).suffix else RECIPES / f"{source}.yaml"
    if not Path(source).suffix and not path.is_file():
        raise CrossdraftError(f"There is no recipe '{source}'; choose among {', '.join(recipe_names())}.")
    return read_section(HeadRecipe, path, overrides, ("reference", reference))
