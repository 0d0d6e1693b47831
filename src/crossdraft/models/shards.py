"""Checkpoint folders read as they are: JSON, safetensors or PyTorch weights, in one file or in shards."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.files import read_json

OnShard = Callable[[str, int, int], None]
"""Progress callback: told what is being done, how many shards are done, and how many there are."""

SINGLE = ("model.safetensors", "pytorch_model.bin")


def read_weights(
    folder: Path, on_shard: OnShard = lambda *_: None, singles: Sequence[str] = SINGLE
) -> dict[str, Tensor]:
    """Read every tensor of a checkpoint folder: one file, or the shards that an index lists.

    Safetensors are preferred. PyTorch files are unpickled with `weights_only=True`, which runs no code.

    Args:
        folder: the checkpoint folder.
        on_shard: called for every file.
        singles: possible names of a single file, the preferred first.

    Raises:
        CrossdraftError: there are no weights, or a shard is missing, damaged, or outside the folder.
    """
    names = _shard_names(folder, singles)
    weights: dict[str, Tensor] = {}
    for done, name in enumerate(names):
        on_shard("reading", done, len(names))
        weights |= _read_shard(folder / name)
    on_shard("reading", len(names), len(names))
    return weights


def _shard_names(folder: Path, singles: Sequence[str]) -> list[str]:
    for single in singles:
        if (folder / single).is_file():
            return [single]
        index = folder / f"{single}.index.json"
        if index.is_file():
            shards = read_json(index).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise CrossdraftError(f"{index} lists no shards; download it again.")
            names = sorted({str(name) for name in shards.values()})
            stray = [name for name in names if Path(name).name != name]
            if stray:
                raise CrossdraftError(f"{index} points outside its folder ({stray[0]}); do not trust this checkpoint.")
            return names
    raise CrossdraftError(f"{folder} holds no weights; expected {' or '.join(singles)}, or the index of their shards.")


def _read_shard(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CrossdraftError(f"The checkpoint lacks its shard {path}; download it again.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        shard = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (SafetensorError, RuntimeError, OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CrossdraftError(f"{path} is damaged or holds more than tensors ({reason}); download it again.") from error
    if not isinstance(shard, dict) or not all(isinstance(value, Tensor) for value in shard.values()):
        raise CrossdraftError(f"{path} is not a state dict (names to tensors); give the model's weights.")
    return shard
