"""Heads on disk: `config.json` and `model.safetensors`.

Weights that a head shares with its target are not stored. So the configuration names the target by a hash of its
weights, and a head is loaded only for that target, unless the caller says otherwise.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from crossdraft.checks import suggestion
from crossdraft.errors import CrossdraftError
from crossdraft.heads.folders import CONFIG, FORMAT, check_head, check_trained_for, head_json
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.registry import NETWORKS
from crossdraft.models.shards import read_weights
from crossdraft.plugins import more_to_install

WEIGHTS = "model.safetensors"
RETIRED = ("frames_dropped",)  # settings of heads saved by version 0.1, now without meaning
KEYS = ("format", "network", "target", "config")
OF_TARGET = ("hidden_size", "vocab_size", "num_layers", "draft_ids")
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "null"}


@dataclass(frozen=True)
class HeadFile:
    """A head's `config.json`.

    Args:
        network: name of the network in `NETWORKS`.
        target: hash of the target's weights.
        config: configuration of the network.
    """

    network: str
    target: str
    config: HeadConfig


def make(network: str, config: HeadConfig, shared: SharedWeights) -> Head:
    """Make an untrained head."""
    return NETWORKS[network].network_class(config, shared)


def save_head(folder: Path, head: Head, network: str, target: str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a head into an existing folder."""
    head_json = {"format": FORMAT, "network": network, "target": target, "config": asdict(head.config)}
    (folder / CONFIG).write_text(json.dumps(head_json, indent=1) + "\n", encoding="utf-8")
    weights = {name: value.detach().to("cpu", dtype).contiguous() for name, value in head.stored().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def read_config(folder: Path) -> HeadFile:
    """Read a head's configuration, without its weights.

    Raises:
        CrossdraftError: the file is missing, no JSON, of another format, or has an unknown network or key.
    """
    path, found = folder / CONFIG, head_json(folder)
    for key in found:
        if key not in KEYS:
            hint = suggestion(key, KEYS, f"its keys are {', '.join(KEYS)}.")
            raise CrossdraftError(f"{path}: a head's configuration has no key '{key}'; {hint}")
    network = found["network"]
    settings = {key: value for key, value in found.get("config", {}).items() if key not in RETIRED}
    return HeadFile(network, str(found.get("target", "")), config_of(network, settings, str(path)))


def config_of(network: str, values: Mapping[str, Any], where: str) -> HeadConfig:
    """Make a network's configuration from plain values; `where`, the values' source, begins the error message.

    Raises:
        CrossdraftError: the network or a key is unknown (the nearest is named), a key is missing, or a value has
            another type or is invalid.
    """
    if network not in NETWORKS:
        hint = suggestion(network, NETWORKS, f"choose among {', '.join(NETWORKS)}.{more_to_install()}")
        raise CrossdraftError(f"{where}: there is no network '{network}'; {hint}")
    kind = NETWORKS[network].config_class
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            hint = suggestion(key, known, f"its settings are {', '.join(known)}.")
            raise CrossdraftError(f"{where}: the network '{network}' has no setting '{key}'; {hint}")
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    kinds = get_type_hints(kind)
    for key, value in plain.items():
        if not fits(value, kinds[key]):
            raise CrossdraftError(
                f"{where}: the setting '{key}' of the network '{network}' must be {described(kinds[key])}, not "
                f"{value!r}."
            )
    try:
        return kind(**plain)
    except TypeError as error:
        raise CrossdraftError(f"{where}: settings of the network '{network}' are missing: {error}.") from error


def load_head(folder: Path, shared: SharedWeights, target: str | None = None, network: str | None = None) -> Head:
    """Load a head, in float32, for the target with the weights `shared`.

    Args:
        folder: folder that `save_head` wrote.
        shared: weights that the head shares with the target.
        target: hash of the target's weights, which the head's must equal; `None` = no comparison.
        network: network that the head must have; `None` = any.

    Raises:
        CrossdraftError: as `read_config`; the head is another network or another target's; or its weights do not fit.
    """
    found = read_config(folder)
    check_head(folder, found.network, network)
    if target is not None:
        check_trained_for(folder, found.target, target)
    return revived(found.network, found.config, shared, stored_weights(folder))


def revived(network: str, config: HeadConfig, shared: SharedWeights, weights: Mapping[str, torch.Tensor]) -> Head:
    """Make a head from its weights, in float32, ready to draft.

    Raises:
        CrossdraftError: as `Head.restore`.
    """
    head = make(network, config, shared)
    head.restore({name: value.float() for name, value in weights.items()})
    return head.eval()


def stored_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read a head's own weights, in the dtype in which they are stored.

    Raises:
        CrossdraftError: the weights are missing or damaged.
    """
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CrossdraftError(f"The weights in {folder} cannot be read: {error}.") from error


def fits(value: object, hint: Any) -> bool:
    """True if a value is of a field's type: a plain one, a tuple of any length, or a union of these.

    >>> fits(3, float), fits(True, int), fits((1, 2), tuple[int, ...] | None), fits("3", int)
    (True, False, True, False)
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return any(fits(value, one) for one in args)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(one, args[0]) for one in value)
    if isinstance(value, bool):  # in Python, bool is a subclass of int
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def described(hint: Any) -> str:
    """A type in words.

    >>> described(tuple[int, ...] | None)
    'a list, each a whole number, or null'
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return ", or ".join(described(one) for one in args)
    if origin is tuple:
        return f"a list, each {described(args[0])}"
    return WORDS[hint]


@dataclass(frozen=True)
class HeadSummary:
    """A head's folder, as `crossdraft head show` describes it; `settings` are the network's own."""

    network: str
    parameters: int
    dtype: str
    target: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    draft_vocabulary: int
    reads: tuple[int, ...]
    visual_reads: tuple[int, ...]
    settings: dict[str, Any]

    def lines(self) -> Iterator[str]:
        """Lines to print."""
        visual = f"; at visual positions {_listed(self.visual_reads)}" if self.visual_reads else ""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        yield f"network           {self.network}: {settings}"
        yield f"parameters        {self.parameters:,} of its own, {self.dtype}"
        yield (
            f"target            {self.target[:12] or 'unnamed'}…: {self.num_layers} layers, {self.hidden_size} "
            f"features, {self.vocab_size} ids"
        )
        yield f"draft vocabulary  {self.draft_vocabulary} ids"
        yield f"reads             hidden states {_listed(self.reads)} of the text{visual}"


def summarize(folder: Path) -> HeadSummary:
    """Describe a head's folder.

    Raises:
        CrossdraftError: the folder holds no head, or its weights do not fit its configuration.
    """
    found = read_config(folder)
    config, weights = found.config, read_weights(folder, singles=(WEIGHTS,))
    # On the device `meta` a network has shapes without weights: its target is not needed.
    with torch.device("meta"):
        rows = torch.empty(config.vocab_size, config.hidden_size)
        head = make(found.network, config, SharedWeights(rows, rows))
    own = head.stored()
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        raise CrossdraftError(f"The weights in {folder} do not fit its config.json; is the folder whole?")
    return HeadSummary(
        found.network,
        sum(value.numel() for value in weights.values()),
        str(next(iter(weights.values())).dtype).removeprefix("torch."),
        found.target,
        config.hidden_size,
        config.vocab_size,
        config.num_layers,
        len(config.draft_ids),
        head.reads,
        head.visual_reads,
        {name: value for name, value in asdict(config).items() if name not in OF_TARGET},
    )


def _listed(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
