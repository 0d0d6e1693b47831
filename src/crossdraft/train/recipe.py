"""The recipe: one typed schema is the single source of every training option.

A recipe is a YAML file with one section a stage. Unknown keys are refused with the nearest known one, so a
typing error never trains the wrong thing for an hour. `key=value` overrides use dotted paths
(`target.train.0.optim.steps=100`; phases count from 0) and their values are parsed as YAML.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crossdraft.errors import CrossdraftError

REFERENCE_RECIPE = Path(__file__).parent / "recipes" / "reference.yaml"


class Section(BaseModel):
    """A frozen recipe section that knows every key it may hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Optim(Section):
    """AdamW under a warm-up / stable / decay schedule (constant, then linear to zero)."""

    steps: int = Field(gt=0)
    decay_steps: int = Field(ge=0)
    warmup_steps: int = Field(default=50, ge=0)
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    beta2: float = Field(default=0.98, gt=0, lt=1)
    clip_norm: float = Field(default=1.0, gt=0)
    clips: int = Field(gt=0, description="clips a step")
    checkpoint_every: int = Field(default=200, gt=0)


class Tokenizer(Section):
    """One byte-level BPE for both models."""

    vocab_size: int = Field(default=4096, gt=300)
    scenes: int = Field(
        default=2000, gt=0, description="training scenes whose questions and answers are read"
    )


class Cache(Section):
    """Clips rendered once: RGB for the target, event frames for the drafter (its first `event_clips`)."""

    train_clips: int = Field(gt=0)
    event_clips: int = Field(gt=0)
    validation_clips: int = Field(gt=0)
    workers: int = Field(default=2, gt=0)


class Vision(Section):
    """A CLIP vision tower; features come from the layer before the last, which therefore has no say."""

    image_size: int = 112
    patch_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=1)
    heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)


class Text(Section):
    """A Llama decoder."""

    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=1)
    heads: int = Field(gt=0)
    head_dim: int = 64
    intermediate_size: int = Field(gt=0)
    max_positions: int = 1024
    tie_embeddings: bool = Field(default=False, description="one table for tokens in and out")


class Jitter(Section):
    """What pictures undergo in training; event frames know only `drop` and `shift`."""

    noise: float = Field(default=0.0, ge=0, description="largest std of the pixel noise, 8-bit steps")
    brightness: float = Field(default=0.0, ge=0, description="largest relative change of brightness")
    drop: float = Field(default=0.0, ge=0, lt=1, description="largest share of pixels turned white")
    shift: int = Field(default=0, ge=0, description="largest translation, pixels")


class Sight(Section):
    """Pre-training of a tower on the scene's attributes."""

    optim: Optim
    jitter: Jitter = Jitter()


class Train(Section):
    """Next-token training on answers, `questions` of them a clip in one pass."""

    optim: Optim
    questions: int = Field(gt=0)
    attribute_weight: float = Field(default=0.3, ge=0)
    question_wear: float = Field(
        default=0.0, ge=0, lt=1, description="largest share of a question's words worn"
    )
    freeze_tower: bool = Field(default=False, description="keep the tower as its sight stage left it")
    jitter: Jitter = Jitter()


class Target(Section):
    """The video VLM: shapes, sight, training."""

    frames: int = 8
    vision: Vision
    text: Text
    sight: Sight
    train: tuple[Train, ...] = Field(
        min_length=1, description="phases; each starts from the weights of the last"
    )


class Answers(Section):
    """The target's own greedy answers, which the drafters learn."""

    questions: int = Field(gt=0, description="answers a clip")
    clips: int = Field(gt=0, description="clips decoded together")
    max_new_tokens: int = Field(default=112, gt=0)


class Drafter(Section):
    """The event VLM and its blind twin: shapes, sight, training."""

    frames: int = 5
    vision: Vision
    text: Text
    sight: Sight
    train: tuple[Train, ...] = Field(min_length=1)


class TextDrafter(Section):
    """A blind text model with a vocabulary of its own, which learns from ground truth: no pictures, no target."""

    vocab_size: int = Field(gt=128)
    scenes: int = Field(gt=0, description="training scenes whose texts the vocabulary is learned from")
    text: Text
    questions: int = Field(gt=0, description="questions a scene and step")
    question_wear: float = Field(default=0.0, ge=0, lt=1)
    optim: Optim = Field(description="`clips` counts scenes")


class Evaluate(Section):
    """Held-out figures: scenes of the test split."""

    scenes: int = Field(gt=0)
    questions: int = Field(gt=0, description="questions a scene")
    clips: int = Field(default=8, gt=0, description="clips decoded together")


class Recipe(Section):
    """Everything that `crossdraft train reference` does."""

    seed: int = 0
    threads: int = Field(default=2, gt=0)
    tokenizer: Tokenizer
    cache: Cache
    target: Target
    answers: Answers
    drafter: Drafter
    text_drafter: TextDrafter
    evaluate: Evaluate


def load_recipe(path: str | Path = REFERENCE_RECIPE, overrides: Sequence[str] = ()) -> Recipe:
    """Read a YAML recipe and apply `dotted.key=value` overrides.

    Raises:
        CrossdraftError: the file is missing or not YAML, or a key or value is wrong (nearest key suggested).
    """
    path = Path(path)
    tree = _parse(_read(path), f"The recipe {path}")
    if not isinstance(tree, dict):
        raise CrossdraftError(
            f"The recipe {path} must be a mapping of sections, as recipes/reference.yaml is."
        )
    for override in overrides:
        _override(tree, override)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise CrossdraftError(f"The recipe {path}: {_explain(error)}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CrossdraftError(
            f"Cannot read the recipe {path}: {error.strerror}; give an existing YAML file."
        ) from error
    except UnicodeDecodeError as error:
        raise CrossdraftError(
            f"The recipe {path} is not UTF-8 (byte {error.start}); give a YAML text file saved as UTF-8."
        ) from error


def _parse(text: str, what: str) -> Any:
    """YAML as plain values; `what` begins the complaint."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that no calendar has
        raise CrossdraftError(f"{what} is not YAML: {' '.join(str(error).split())}.") from error


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise CrossdraftError(
            f"The override '{override}' must read key=value, for example target.train.0.questions=8."
        )
    *parents, last = key.split(".")
    node: Any = tree
    for name in parents:
        if isinstance(node, list):  # phases, numbered from 0
            if not name.isdecimal() or int(name) >= len(node):
                raise CrossdraftError(
                    f"The override '{override}' must name a phase by its number, 0 to {len(node) - 1}, not '{name}'."
                )
            node = node[int(name)]
        else:
            node = node.setdefault(name, {})
        if not isinstance(node, dict | list):
            raise CrossdraftError(f"The override '{override}' goes through '{name}', which is no section.")
    if isinstance(node, list):
        example = ".".join((*parents, "0", "questions" if last.isdecimal() else last))
        raise CrossdraftError(
            f"The override '{override}' must name a phase and one of its settings, for example {example}=…."
        )
    node[last] = _parse(text, f"The value of the override '{override}'")


def _explain(error: ValidationError) -> str:
    """The first complaint as one sentence; for an unknown key, with the nearest known one."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        return f"'{where}': {first['msg'].lower()}."
    known = _section_at(first["loc"][:-1]).model_fields
    near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys are {', '.join(known)}."
    return f"unknown key '{where}'; {hint}"


def _section_at(loc: Sequence[int | str]) -> type[Section]:
    section: type[Section] = Recipe
    for name in loc:
        if isinstance(name, int):  # a phase: its section was reached through the list's element type
            continue
        kind = section.model_fields[name].annotation
        section = cast("type[Section]", next(iter(get_args(kind)), kind))
    return section
