"""A checkpoint written again with some of its weights changed, file by file: no model needs to be in memory for it."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from crossdraft.checkpoints.files import INDEX
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.core.finite import weight_files

CONFIG = "config.json"
NOTHING: Mapping[str, Tensor] = MappingProxyType({})
Change = Callable[[str, Tensor], Tensor]
"""(name, weight as it was) -> weight as it is."""


def write_changed(
    source: Path, folder: Path, names: Collection[str], change: Change, added: Mapping[str, Tensor] = NOTHING
) -> None:
    """Write the weights of a checkpoint into another folder, in bf16, changed where they have changed.

    Memory: one file of the checkpoint, and one weight.

    Args:
        source, folder: of the checkpoint, and where it goes.
        names: of the weights that have changed.
        change: called for each of them.
        added: weights that it shall have besides; they go into its last file, instead of any of the same name.

    Raises:
        CrossdraftError: the checkpoint has no weight of one of these names.
    """
    files, written, size = weight_files(source), {}, 0
    for path in files:
        more = added if path == files[-1] else NOTHING
        tensors = {name: weight.detach().cpu().to(torch.bfloat16).contiguous() for name, weight in more.items()}
        for name, weight in tensors.items():
            written[name] = path.name
            size += weight.nbytes
        with safe_open(path, "pt") as kept:
            for name in kept.keys():  # noqa: SIM118 - it is no dict
                if name in added:
                    continue
                weight = kept.get_tensor(name)
                changed = change(name, weight).detach().cpu() if name in names else weight
                tensors[name] = (changed.to(torch.bfloat16) if changed.is_floating_point() else changed).contiguous()
                written[name] = path.name
                size += tensors[name].nbytes
        save_file(tensors, folder / path.name, {"format": "pt"})
    lacking = sorted(set(names) - written.keys())
    if lacking:
        raise CrossdraftError(
            f"The checkpoint {source} has no weight '{lacking[0]}', into which something was learned; save it with "
            "crossdraft convert eventgpt first."
        )
    if len(files) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(written.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def follow_changed(source: Path, names: Collection[str], change: Change) -> None:
    """Call `change` as `write_changed` does on another rank, in the same order, and write nothing.

    Where ranks share weights, `change` puts one together, for which all of them are needed.
    """
    for path in weight_files(source):
        with safe_open(path, "pt") as kept:
            for name in kept.keys():  # noqa: SIM118 - it is no dict
                if name in names:
                    change(name, kept.get_tensor(name))


def write_untied(source: Path, folder: Path) -> None:
    """Write a checkpoint's `config.json` into another folder, saying that its LM head is not its token embeddings."""
    config: dict[str, Any] = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = False
    if isinstance(text := config.get("text_config"), dict):
        text["tie_word_embeddings"] = False
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_weight(source: Path, names: Collection[str]) -> Tensor:
    """The first weight of these names that a checkpoint has.

    Raises:
        CrossdraftError: it has none of them.
    """
    for name in names:
        for path in weight_files(source):
            with safe_open(path, "pt") as kept:
                if name in kept.keys():  # noqa: SIM118 - it is no dict
                    return kept.get_tensor(name)
    raise CrossdraftError(f"The checkpoint {source} has no weight {' or '.join(names)}.")
