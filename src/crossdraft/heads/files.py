"""Heads on disk: `config.json` and `model.safetensors`, nothing else and nothing more in them than is said here.

What a head borrows of its target is not stored: a head without its target is nothing. So the configuration names the
target by a hash of its weights, and a head is loaded for that one only, unless the caller says otherwise.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from crossdraft.checks import suggestion
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft.heads.networks.registry import NETWORKS
from crossdraft.heads.networks.settings import fits, told

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True)
class HeadFile:
    """What a head's `config.json` says.

    Args:
        network: see `NETWORKS`.
        target: hash of the target's weights.
        config: the network's.
    """

    network: str
    target: str
    config: HeadConfig


def make(network: str, config: HeadConfig, shared: SharedWeights) -> Head:
    """A freshly initialised head."""
    return NETWORKS[network].kind(config, shared)


def save_head(folder: Path, head: Head, network: str, target: str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a head into a folder that exists."""
    described = {"format": FORMAT, "network": network, "target": target, "config": asdict(head.config)}
    (folder / CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    weights = {name: value.detach().to("cpu", dtype).contiguous() for name, value in head.stored().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def read_config(folder: Path) -> HeadFile:
    """What is said of a head, without its weights.

    Raises:
        CrossdraftError: the file is missing, no JSON, of another format, or has an unknown network or key.
    """
    path = folder / CONFIG
    if not path.is_file():
        inner = folder / "head"
        hint = f"its head lies in {inner}" if (inner / CONFIG).is_file() else "`crossdraft train` writes heads"
        there = f"The folder {folder} holds no head" if folder.is_dir() else f"There is no folder {folder}"
        raise CrossdraftError(f"{there}; {hint}.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CrossdraftError(f"{path} cannot be read as a head's configuration: {error}.") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("network") not in NETWORKS:
        raise CrossdraftError(
            f"{path} describes no head of this version of crossdraft (networks: {', '.join(NETWORKS)}); heads of other "
            "projects are read by `crossdraft head import`."
        )
    network = found["network"]
    return HeadFile(network, str(found.get("target", "")), config_of(network, found.get("config", {}), str(path)))


def config_of(network: str, values: Mapping[str, Any], where: str) -> HeadConfig:
    """A network's configuration from plain values; `where` they stood begins the complaint.

    Raises:
        CrossdraftError: the network or a key is unknown (the nearest is named), a key is missing, or a value is of
            another kind or makes no sense.
    """
    if network not in NETWORKS:
        hint = suggestion(network, NETWORKS, f"choose among {', '.join(NETWORKS)}.")
        raise CrossdraftError(f"{where}: there is no network '{network}'; {hint}")
    kind = NETWORKS[network].config
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            hint = suggestion(key, known, f"it knows {', '.join(known)}.")
            raise CrossdraftError(f"{where}: the network '{network}' has no setting '{key}'; {hint}")
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    kinds = get_type_hints(kind)
    for key, value in plain.items():
        if not fits(value, kinds[key]):
            raise CrossdraftError(
                f"{where}: the setting '{key}' of the network '{network}' must be {told(kinds[key])}, not {value!r}."
            )
    try:
        return kind(**plain)
    except TypeError as error:
        raise CrossdraftError(f"{where}: the network '{network}' is not whole: {error}.") from error


def load_head(folder: Path, shared: SharedWeights, target: str | None = None, network: str | None = None) -> Head:
    """A head for the target whose tables these are, in float32.

    Args:
        folder: where `save_head` wrote it.
        tables: what it borrows.
        target: hash of the target's weights, `None` = do not ask whether it is this head's.
        network: what it must be; `None` = whatever it is.

    Raises:
        CrossdraftError: as `read_config`, the head is another network or another target's, or its weights do not fit.
    """
    described = read_config(folder)
    if network is not None and described.network != network:
        raise CrossdraftError(f"{folder} holds a head of the network '{described.network}', not '{network}'.")
    if target is not None and described.target != target:
        raise CrossdraftError(
            f"The head in {folder} was trained for another target ({described.target[:12]}…, this one is "
            f"{target[:12]}…); train it for this one, choose the target it belongs to, or name a drafter that fits "
            "every target, such as union:memory,ngram."
        )
    return revived(described.network, described.config, shared, stored_weights(folder))


def revived(network: str, config: HeadConfig, shared: SharedWeights, weights: Mapping[str, torch.Tensor]) -> Head:
    """A head with these weights, in float32, ready to draft.

    Raises:
        CrossdraftError: as `Head.restore`.
    """
    head = make(network, config, shared)
    head.restore({name: value.float() for name, value in weights.items()})
    return head.eval()


def stored_weights(folder: Path) -> dict[str, torch.Tensor]:
    """A head's own weights, in the dtype in which they are stored.

    Raises:
        CrossdraftError: they are missing or damaged.
    """
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CrossdraftError(f"The weights in {folder} cannot be read: {error}.") from error
