"""The recipe of a head: its network, shape, losses and training settings.

A recipe states a method (number of unrolled steps, losses). Widths, attention heads and the layers that are read depend
on the target, so a recipe leaves them out, or sets them to `null`, and `sizes_of` fills them in.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.network import DrafterMedusaConfig
from crossdraft.heads.glance.network import GlanceConfig
from crossdraft.heads.networks.base import HeadConfig
from crossdraft.heads.networks.dflash import DFlashConfig
from crossdraft.heads.networks.eagle3 import Eagle3Config, levels_of
from crossdraft.heads.networks.layers import DecoderConfig
from crossdraft.heads.networks.medusa import HydraConfig
from crossdraft_lab.train.capture.plan import default_layers
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


SHALLOW = 8  # with fewer layers, L - 3 is no high level


def sizes_of(kind: type[HeadConfig], host: Target) -> dict[str, Any]:
    """Settings of a network that follow from the model that it belongs to, by name.

    Args:
        kind: the network's configuration class.
        host: the model whose features the head reads: the target, or an event model.
    """
    text = host.text_config
    sizes: dict[str, Any] = {}
    if issubclass(kind, DecoderConfig):
        sizes |= _decoder_sizes(text)
        # A draft may reach beyond the end of a short context; too many positions only add rows to a table.
        sizes["max_positions"] = max(host.context, kind.max_positions)
    if issubclass(kind, HydraConfig):  # both H in the paper
        sizes |= {"token_size": text.hidden_size, "width": text.hidden_size}
    if issubclass(kind, DrafterMedusaConfig):
        sizes["width"] = text.hidden_size
    if issubclass(kind, DFlashConfig):
        sizes["read_layers"] = default_layers(text.num_hidden_layers)
    if issubclass(kind, Eagle3Config):
        sizes["levels"] = default_levels(text.num_hidden_layers)
    if issubclass(kind, GlanceConfig):
        sizes |= {"heads": text.num_attention_heads, "intermediate_size": text.intermediate_size}
    return sizes


def levels_read(kind: type[HeadConfig], settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The target's hidden states that a network fuses and scales; empty where it has no scales."""
    name = "levels" if issubclass(kind, Eagle3Config) else "read_layers"
    fuses = issubclass(kind, Eagle3Config | DFlashConfig)
    return tuple(settings[name]) if fuses else ()


def default_levels(depth: int) -> tuple[int, int, int]:
    """Layers of EAGLE-3's low, middle and high hidden states: 2, L/2 and L - 3, all kept by `crossdraft capture`.

    In a target of fewer than 8 layers L - 3 would be the middle; there the high level is the last layer's input.

    >>> default_levels(28), default_levels(12), default_levels(7)
    ((2, 14, 25), (2, 6, 9), (2, 3, 6))
    """
    return levels_of(depth) if depth >= SHALLOW else (min(2, depth), depth // 2, max(depth - 1, 0))


def source_layers(depth: int, *, several: bool) -> tuple[int, ...]:
    """Hidden states that an adapter reads of a drafter of that depth: the last one, or several including the last.

    >>> source_layers(32, several=False), source_layers(32, several=True), source_layers(2, several=True)
    ((32,), (2, 16, 32), (0, 1, 2))
    """
    if not several:
        return (depth,)
    return (2, depth // 2, depth) if depth >= SHALLOW else tuple(range(depth + 1))


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


def _decoder_sizes(text: Any) -> dict[str, Any]:
    """Sizes of attention and MLP, equal to those of the target's own layers."""
    heads = text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {}
    return {
        "heads": heads,
        "kv_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "intermediate_size": text.intermediate_size,
        "rope_theta": float(rope.get("rope_theta", DecoderConfig.rope_theta)),
        "eps": float(getattr(text, "rms_norm_eps", DecoderConfig.eps)),
    }
