"""Checkpoint folders as files: read safetensors or PyTorch shards, write safetensors, a whole folder or none."""

import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt.faults import told_as

OnShard = Callable[[str, int, int], None]
"""Told what is being done, how many shards are done, and of how many."""

SINGLE = ("model.safetensors", "pytorch_model.bin")


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        CrossdraftError: the file is missing or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CrossdraftError(
            f"Cannot read {path}: {error.strerror}; give a complete checkpoint folder."
        ) from error
    except ValueError as error:
        raise CrossdraftError(f"{path} is not JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise CrossdraftError(f"{path} must hold a JSON object; download it again.")
    return value


def read_weights(folder: Path, on_shard: OnShard) -> dict[str, Tensor]:
    """Read every tensor of a checkpoint folder: one file, or the shards that an index lists.

    Safetensors are preferred. PyTorch files are unpickled with `weights_only=True`, which runs no code.

    Raises:
        CrossdraftError: there are no weights, or a shard is missing, damaged, or outside the folder.
    """
    names = _shard_names(folder)
    weights: dict[str, Tensor] = {}
    for done, name in enumerate(names):
        on_shard("reading", done, len(names))
        weights |= _read_shard(folder / name)
    on_shard("reading", len(names), len(names))
    return weights


def _shard_names(folder: Path) -> list[str]:
    for single in SINGLE:
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
                raise CrossdraftError(
                    f"{index} points outside its folder ({stray[0]}); do not trust this checkpoint."
                )
            return names
    raise CrossdraftError(
        f"{folder} holds no weights; expected {' or '.join(SINGLE)}, or the index of their shards."
    )


def _read_shard(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CrossdraftError(f"The checkpoint lacks its shard {path}; download it again.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        shard = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (SafetensorError, RuntimeError, OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CrossdraftError(
            f"{path} is damaged or holds more than tensors ({reason}); download it again."
        ) from error
    if not isinstance(shard, dict) or not all(isinstance(value, Tensor) for value in shard.values()):
        raise CrossdraftError(f"{path} is not a state dict (names to tensors); give the model's weights.")
    return shard


def write_weights(folder: Path, weights: Mapping[str, Tensor], on_shard: OnShard) -> None:
    """Write safetensors shards of at most 5 GB, and their index where there are several."""
    split = split_torch_state_dict_into_shards(dict(weights))
    shards = split.filename_to_tensors
    for done, (name, keys) in enumerate(shards.items()):
        on_shard("writing", done, len(shards))
        save_file({key: weights[key].contiguous() for key in keys}, folder / name, metadata={"format": "pt"})
    on_shard("writing", len(shards), len(shards))
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2) + "\n", encoding="utf-8"
        )


@contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `destination`; rename it to that on success, remove it on failure.

    Raises:
        CrossdraftError: the destination exists and is not an empty folder, or cannot be written.
    """
    try:
        if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
            raise CrossdraftError(f"{destination} exists already; give a new folder, or remove it first.")
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    except OSError as error:
        raise CrossdraftError(
            f"Cannot write {destination}: {error.strerror}; choose a folder you may write to."
        ) from error
    try:
        yield temporary
        with told_as(f"Cannot write {destination}", "choose another folder"):
            temporary.chmod(0o755)
            temporary.replace(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
