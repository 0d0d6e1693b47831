"""The recipe: one typed schema is the single source of every training option.

A recipe is a YAML file with one section a stage. Unknown keys are refused with the nearest known one, so that a
typing error does not start a wrong training. `key=value` overrides use dotted paths
(`target.train.0.optim.steps=100`; phases count from 0) and their values are parsed as YAML.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from crossdraft.checks import suggestion
from crossdraft.errors import CrossdraftError

RECIPES = Path(__file__).parents[1] / "recipes"
NUMBERS = re.compile(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*(,\s*[-+]?[\d.]+(e[-+]?\d+)?\s*)+", re.IGNORECASE)
Read = TypeVar("Read", bound="Section")


class Section(BaseModel):
    """A frozen recipe section that knows every key it may hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    earlier_names: ClassVar[Mapping[str, str]] = {}
    """Earlier name of a key -> its present name; recipes with the earlier name are still read. Both are refused."""

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for old in cls.earlier_names.keys() & values.keys():
            if cls.earlier_names[old] in values:
                raise ValueError(f"{old} is the earlier name of {cls.earlier_names[old]}; give the latter alone")
        return {cls.earlier_names.get(key, key): value for key, value in values.items()}


class Optim(Section):
    """AdamW under a schedule; by default warm-up / stable / decay (constant, then linear to zero)."""

    steps: int = Field(gt=0)
    schedule: Literal["wsd", "cosine", "linear", "constant"] = "wsd"
    decay_steps: int = Field(default=0, ge=0, description="last steps of 'wsd', in which the rate falls")
    warmup_steps: int = Field(default=50, ge=0)
    learning_rate: float = Field(gt=0)
    final: float = Field(default=0.0, ge=0, le=1, description="share of the rate that a decay ends at")
    weight_decay: float = Field(default=0.01, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.98, gt=0, lt=1)
    clip_norm: float = Field(default=1.0, gt=0)
    clips: int = Field(gt=0, description="clips a step; for heads, answers")
    accumulate: int = Field(default=1, gt=0, description="passes that a step's clips are cut into")
    bf16: bool = Field(default=False, description="products in bf16 over float32 weights, on processors that have them")
    ema: float = Field(
        default=0.0, ge=0, lt=1, description="decay of the averaged weights, which are kept; 0: no average"
    )
    checkpoint_every: int = Field(default=200, gt=0, description="steps between checkpoints and checks")
    watch: str | None = Field(
        default=None, description="figure of the checks whose best weights are kept: 'tau'; '-loss' where less is more"
    )
    patience: int = Field(default=0, ge=0, description="checks without a better figure that end it; 0: none do")
    parallel: Literal["ddp", "fsdp"] = Field(default="ddp", description="what ranks share: steps, or weights too")

    @model_validator(mode="after")
    def _patience_watches(self) -> "Optim":
        if self.patience and self.watch is None:
            raise ValueError("patience needs a figure to watch; set watch, for example to 'tau'")
        return self


def learning_rate(optim: Optim, step: int) -> float:
    """Rate with linear warm-up, times the schedule's decay to `final` of the rate; `step` counts from 0.

    - `wsd`: constant, then linear over the last `decay_steps`;
    - `linear` and `cosine`: over all steps, warm-up included, half a wave for the cosine;
    - `constant`: no decay.
    """
    warm = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    return optim.learning_rate * warm * (optim.final + (1 - optim.final) * _undecayed(optim, step))


def _undecayed(optim: Optim, step: int) -> float:
    """Remaining share of the decay, 1 to 0."""
    remaining = optim.steps - step
    match optim.schedule:
        case "wsd":
            return min(1.0, remaining / optim.decay_steps) if optim.decay_steps else 1.0
        case "linear":
            return remaining / optim.steps
        case "cosine":
            return (1 - math.cos(math.pi * remaining / optim.steps)) / 2
        case "constant":
            return 1.0


def read_section(
    kind: type[Read], path: str | Path, overrides: Sequence[str] = (), layer: tuple[str, bool] | None = None
) -> Read:
    """Read a YAML recipe and apply `dotted.key=value` overrides.

    Args:
        layer: name of a section, and whether its settings replace those of the recipe; the section is removed in either
            case.

    Raises:
        CrossdraftError: the file is missing or not YAML, or a key or value is wrong (nearest key suggested).
    """
    path = Path(path)
    shown = path.relative_to(RECIPES) if path.is_relative_to(RECIPES) else path
    tree = _parse(_read(path), f"The recipe {shown}")
    if not isinstance(tree, dict):
        raise CrossdraftError(f"The recipe {shown} must be a mapping of sections, as the shipped ones are.")
    if layer is not None:
        name, wanted = layer
        replaced = tree.pop(name, None)
        tree = _layered(tree, replaced) if wanted and isinstance(replaced, dict) else tree
    for override in overrides:
        _override(tree, override)
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise CrossdraftError(f"The recipe {shown}: {_explain(kind, tree, error)}") from error


def nearest_key(name: str, kind: type[Section], path: Path) -> str | None:
    """Dotted key of a recipe whose last part is nearest to a name; `None` if none is similar."""
    return _like(name, [*_keys(kind), *_set_in(_parse(_read(path), f"The recipe {path}"))])


def _like(name: str, keys: Sequence[str]) -> str | None:
    """Key that is nearest to a name, as a whole or by its last part; of several, the first.

    >>> _like("stesp", ["threads", "optim.steps", "optim.warmup_steps", "config.steps"])
    'optim.steps'
    """
    known = {key.rpartition(".")[2]: key for key in reversed(keys)}
    near = get_close_matches(name, known, 1)
    return known[near[0]] if near else None


def _keys(kind: type[Section], around: str = "") -> Iterator[str]:
    """Yield dotted keys of a recipe of that kind, the section's own first; the first phase represents all phases."""
    yield from (f"{around}{name}" for name in kind.model_fields)
    for name, field in kind.model_fields.items():
        part = _section_at(kind, (name,))
        if isinstance(part, type) and issubclass(part, Section):
            phases = get_origin(field.annotation) is tuple
            yield from _keys(part, f"{around}{name}.0." if phases else f"{around}{name}.")


def _set_in(tree: Any) -> list[str]:
    """Dotted keys that the recipe itself sets: a network's settings are in no schema here."""
    return [key for key, _ in _settings(tree)]


def _layered(tree: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a tree overridden by those of another, section by section."""
    both = dict(tree)
    for name, value in over.items():
        below = both.get(name)
        both[name] = _layered(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both


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
    """Parse YAML into plain values; `what` begins the error message."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that no calendar has
        raise CrossdraftError(f"{what} is not YAML: {' '.join(str(error).split())}.") from error


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise CrossdraftError(f"The override '{override}' must read key=value, for example {_example(tree)}.")
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
    node[last] = _listed(_parse(text, f"The value of the override '{override}'"))


def _example(tree: Any) -> str:
    """Example of a valid override for a recipe: its steps, else its first setting, with the present value.

    >>> _example({"config": {"steps": 5}, "optim": {"steps": 100}}), _example({"phases": [{"rank": 16}]})
    ('optim.steps=100', 'phases.0.rank=16')
    """
    found = [*_settings(tree), ("seed", 0)]
    key, value = next((one for one in found if one[0].endswith("optim.steps")), found[0])
    return f"{key}={value}"


def _settings(tree: Any, around: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of a recipe with its dotted path."""
    if isinstance(tree, Mapping):
        for name, below in tree.items():
            yield from _settings(below, f"{around}.{name}" if around else str(name))
    elif isinstance(tree, list) and tree and isinstance(tree[0], Mapping):
        for number, below in enumerate(tree):
            yield from _settings(below, f"{around}.{number}")
    elif isinstance(tree, bool | int | float | str):
        yield around, tree


def _listed(value: Any) -> Any:
    """Value of an override; numbers with commas between them are a list, as everywhere on the command line.

    >>> _listed("2,6,9"), _listed("0.5, 1e-3"), _listed("a,b")
    ([2, 6, 9], [0.5, 0.001], 'a,b')
    """
    if not isinstance(value, str) or NUMBERS.fullmatch(value) is None:
        return value
    return [float(one) if "." in one or "e" in one.lower() else int(one) for one in value.split(",")]


def _explain(kind: type[Section], tree: Any, error: ValidationError) -> str:
    """First error of a validation as one sentence; for an unknown key, with the nearest known one."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        what = first["msg"].partition(", unable to parse")[0]
        if what.startswith("Input should"):
            return f"'{where}' is {first['input']!r}; it{what.removeprefix('Input')}."
        return f"'{where}': {what[:1].lower()}{what[1:]}."
    section, unknown = _section_at(kind, first["loc"][:-1]), str(first["loc"][-1])
    around = "".join(f"{part}." for part in first["loc"][:-1])
    key = _like(unknown, [*_keys(section, around), *_keys(kind), *(key for key in _set_in(tree) if key != where)])
    if key is not None:
        return f"unknown key '{where}'; did you mean '{key}'?"
    known = section.model_fields
    hint = suggestion(unknown, known, f"known keys are {', '.join(known)}.", around)
    return f"unknown key '{where}'; {hint}"


def _section_at(section: type[Section], loc: Sequence[int | str]) -> type[Section]:
    for name in loc:
        if isinstance(name, int):  # a phase: its section was reached through the list's element type
            continue
        kind = section.model_fields[name].annotation
        section = cast("type[Section]", next(iter(get_args(kind)), kind))
    return section
