"""A head's `config.json`, read and checked without importing PyTorch."""

from pathlib import Path
from typing import Any

from crossdraft.checkpoints.files import ASSISTANT
from crossdraft.errors import CrossdraftError
from crossdraft.files import read_json
from crossdraft.heads.convert.layouts import layout_of
from crossdraft.heads.registry import NETWORKS
from crossdraft.plugins import more_to_install

FORMAT = 1
CONFIG = "config.json"


def head_json(folder: Path) -> dict[str, Any]:
    """Read a head's configuration file; its network is checked, its settings are not.

    Raises:
        CrossdraftError: the file is missing, no JSON, of another format, or has an unknown network.
    """
    path = folder / CONFIG
    if not path.is_file():
        inner = folder / "head"
        hint = (
            f"its head lies in {inner}"
            if (inner / CONFIG).is_file()
            else "`crossdraft train` and `head import` write heads"
        )
        there = f"The folder {folder} holds no head" if folder.is_dir() else f"There is no folder {folder}"
        raise CrossdraftError(f"{there}; {hint}.{more_to_install()}")
    found = read_json(path, "head's configuration", "copy the head again")
    if found.get("format") == FORMAT and str(found.get("network")) in NETWORKS:
        return found
    if found.get("network"):
        raise CrossdraftError(
            f"{path} describes a head of the network '{found['network']}', which this version of crossdraft does not "
            "have; install the version, or the package, that wrote it."
        )
    kind = str(found.get("model_type"))
    try:
        layout = layout_of(found, str(path))
    except CrossdraftError as error:
        if "model_type" not in found:
            raise
        use = f"assistant:dir={folder}" if kind.endswith(ASSISTANT) else f"model:dir={folder}"
        raise CrossdraftError(
            f"{folder} holds no head but a model of type '{kind}'; as a drafter it is {use}."
        ) from error
    raise CrossdraftError(
        f"{folder} holds a head of another project (layout {layout}); `crossdraft head import {folder} NEW` makes "
        "ours of it, and dir=NEW drafts with that."
    )


def check_head(folder: Path, found: str, network: str | None) -> None:
    """Raise CrossdraftError if the network found in a folder is not the wanted one; `None` = any will do."""
    if network is not None and found != network:
        raise CrossdraftError(f"{folder} holds a head of the network '{found}', not '{network}'.")


def check_trained_for(folder: Path, found: str, target: str) -> None:
    """Raise CrossdraftError unless a head was trained for the target; both by the hashes of their weights."""
    if found != target:
        raise CrossdraftError(
            f"The head in {folder} was trained for another target ({found[:12]}…, this one is "
            f"{target[:12]}…); train it for this one, choose the target it belongs to, or name a drafter that fits "
            "every target, such as union:memory,ngram."
        )


def check_event_head(folder: Path, found: str, event: str, source: str) -> None:
    """Raise CrossdraftError unless a head was trained on the event model `source`, whose hash is `event`."""
    if found != event:
        raise CrossdraftError(
            f"The head in {folder} belongs to another event model than '{source}'; name its own with model=FOLDER, or "
            "train it for this one."
        )
