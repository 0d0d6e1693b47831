"""Trained drafters that can be measured, and facts about them that need no run."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from crossdraft.checkpoints.locate import EVENT_MODELS, shipped_at
from crossdraft.errors import CrossdraftError
from crossdraft.heads.registry import HEADS
from crossdraft.methods import METHODS, method_in
from crossdraft.specs import Spec
from crossdraft_lab.bench.common import check_each_once, check_names
from crossdraft_lab.bench.specs import spec_of

PROVENANCE = "provenance.json"  # in the folder of the weights; written by `crossdraft train`
CHAIN = {"tree": "chain"}
# Methods with trained weights of their own, by their records.
TRAINED = tuple(name for name, method in METHODS.items() if method.network)
LISTED_BY = "crossdraft drafters"


def select_heads(methods: Sequence[str] | None, specs: Sequence[str] = ()) -> tuple[dict[str, Spec], tuple[str, ...]]:
    """Select the named drafters; if none is named, all of `TRAINED` that are here, and report the rest. Loads nothing.

    Args:
        methods: names out of `TRAINED`; `None` = only `specs`, if there are any.
        specs: further drafters.

    Raises:
        CrossdraftError: an unknown name, a name given twice, a named head that is not here, or no drafter at all.
    """
    if methods is None and not specs:
        present = [name for name in TRAINED if is_here(Spec(name))]
        absent = [name for name in TRAINED if name not in present]
        if not present:
            raise CrossdraftError(
                "No trained head ships with this version; name one of yours with --drafter METHOD:dir=FOLDER."
            )
        note = f"not measured, for their weights are not shipped: {', '.join(absent)}"
        return {name: Spec(name) for name in present}, (note,) if absent else ()
    check_names("method", methods or (), TRAINED, LISTED_BY)
    named = (*(methods or ()), *specs)
    check_each_once("drafter", named)
    if not named:
        raise CrossdraftError(f"No method is named; `{LISTED_BY}` lists them.")
    chosen = {name: spec_of(name) for name in named}
    for spec in chosen.values():
        _check_here(spec)
    return chosen, ()


def is_here(spec: Spec) -> bool:
    """True if there are weights for every trained drafter that the spec names."""
    return all((folder / "config.json").is_file() for _, _, folder in _heads(spec))


def as_chain(spec: Spec) -> Spec:
    """Let a head draft a chain, one token after another; the spec of any other drafter is returned unchanged.

    >>> str(as_chain(Spec("eagle2"))), str(as_chain(Spec("memory")))
    ('eagle2:tree=chain', 'memory')
    """
    return replace(spec, settings={**spec.settings, **CHAIN}) if spec.name in HEADS else spec


def short_labels(drafters: Mapping[str, Spec]) -> dict[str, str]:
    """Labels for tables and pictures: specs without their folders where labels still differ.

    >>> from crossdraft.specs import parse
    >>> short_labels({text: parse(text) for text in ("eagle2:dir=a", "hydra:dir=b", "hydra:dir=c")})
    {'eagle2:dir=a': 'eagle2', 'hydra:dir=b': 'hydra:dir=b', 'hydra:dir=c': 'hydra:dir=c'}
    """
    short = {name: str(_without_folders(spec)) for name, spec in drafters.items()}
    counts = Counter(short.values())
    return {name: label if counts[label] == 1 else name for name, label in short.items()}


def weight_facts(spec: Spec, target: str = "reference") -> dict[str, int | float | None]:
    """Count the weights that a drafter runs, and the stored ones of its heads, from the files' headers alone.

    `parameters` counts everything that the drafter runs: its heads, and the event model that they belong to. Parts of
    the target (embeddings, output rows, keys and values, visual features) are not counted. `trained_parameters` and
    `stored_bytes` are of its heads alone, `training_minutes` of all their trainings; None if that was not written down.

    Args:
        spec: spec of the drafter, with the models of the pair named.
        target: `reference`, or the folder of the target that it drafts for.

    Raises:
        CrossdraftError: weights that cannot be read.
    """
    folders = dict.fromkeys(folder for _, _, folder in _heads(spec))
    files = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    times = [_training_s(folder) for folder in folders]
    known = [seconds for seconds in times if seconds is not None]
    parts = [
        (path, parts)
        for folder, parts in dict.fromkeys(_networks(spec, target))
        for path in sorted(folder.glob("*.safetensors"))
    ]
    return {
        "parameters": sum(_numbers(path, own) for path, own in parts),
        "trained_parameters": sum(map(_numbers, files)),
        "stored_bytes": sum(path.stat().st_size for path in files),
        "training_minutes": round(sum(known) / 60, 1) if known and len(known) == len(times) else None,
    }


def _without_folders(spec: Spec) -> Spec:
    own = method_in(spec).weights
    settings = {key: value for key, value in spec.settings.items() if key not in own}
    return replace(spec, settings=settings, parts=tuple(map(_without_folders, spec.parts)))


def _check_here(spec: Spec) -> None:
    for owner, setting, folder in _heads(spec):
        head = method_in(owner).weights[setting]
        named = owner.name if setting == "dir" else head
        if head and not (folder / "config.json").is_file():
            raise CrossdraftError(
                f"The folder {folder} holds no head for '{named}'; name one that `crossdraft train` has written."
                if setting in owner.settings
                else f"The head of '{owner.name}' does not ship with this version; name yours with --drafter "
                f"{owner.name}:{setting}=FOLDER."
            )


def _heads(spec: Spec) -> Iterator[tuple[Spec, str, Path]]:
    """Yield each folder of trained weights that a spec reads: the spec it is for, the setting naming it, its path."""
    method, settings = method_in(spec), spec.settings
    theirs = settings.get("model", method.model) != method.model  # then the shipped model's further heads are not used
    for setting, shipped in method.weights.items():
        if setting in settings:
            yield spec, setting, Path(settings[setting])
        elif shipped and (setting == "dir" or not theirs):
            yield spec, setting, shipped_at(f"heads/{shipped}")
    for part in spec.parts:
        yield from _heads(part)


def _networks(spec: Spec, target: str) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the networks that run: a folder of weights and names of its modules; no names = all modules."""
    yield from ((folder, ()) for _, _, folder in _heads(replace(spec, parts=())))
    method = method_in(spec)
    if method.model == "target":
        yield _source(target), ()
    elif method.model is not None:
        own = method.model if spec.name == method.name else spec.name  # a folder stands for itself
        named = "model" if "dir" in method.weights else "dir"
        yield _source(spec.settings.get(named, own)), method.model_parts
    for part in spec.parts:
        yield from _networks(part, target)


def _source(name: str) -> Path:
    """Folder of a model: a name of the reference pair gives its folder, anything else is a path."""
    shipped = {"reference": "target"} | {own: own for own in (*EVENT_MODELS, "text")}
    return shipped_at(shipped[name]) if name in shipped else Path(name)


def _numbers(path: Path, parts: tuple[str, ...] = ()) -> int:
    """Count the numbers stored in the modules named by `parts`, or in all, from the file's header alone."""
    try:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if not parts or set(parts) & set(name.split("."))]  # noqa: SIM118
            return sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    except (OSError, SafetensorError) as error:
        raise CrossdraftError(f"The weights in {path} cannot be read: {error}.") from error


def _training_s(folder: Path) -> float | None:
    """Seconds of training as `crossdraft train` noted them; `None` for weights of another origin."""
    try:
        seconds = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))["figures"]["wall_s"]
        return float(seconds)
    except (OSError, ValueError, KeyError, TypeError):
        return None
