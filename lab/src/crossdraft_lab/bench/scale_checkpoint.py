"""`crossdraft scale checkpoint`: a checkpoint of the hub's layout with random weights, of any size.

What loading, memory and disk need at 7B can so be tried without a download. One tensor is held in memory at a time.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from torch import Tensor
from transformers import AutoModelForImageTextToText

from crossdraft.checkpoints.files import INDEX
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft_lab.bench.scale_layouts import SHAPES, Layout, layout_of
from crossdraft_lab.bench.scale_tokenizer import write_json_file

DTYPE = torch.bfloat16
ROOM = 100_000_000  # bytes that stay free on the disk, settings and tokenizer included
PATTERN = "model{suffix}.safetensors"

OnBytes = Callable[[str, int], None]
"""Called with a file's name and how many bytes of its weights were just written."""


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """Contents of a written checkpoint: `bytes` of weights in so many `shards`."""

    folder: str
    config: str
    tensors: int
    parameters: int
    bytes: int
    shards: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which tensor goes where: file -> its tensors, by their names on disk, as shapes without memory."""

    files: Mapping[str, Mapping[str, Tensor]]

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for file in self.files.values() for tensor in file.values()]

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors) * DTYPE.itemsize


def write_checkpoint(
    name: str,
    destination: Path,
    *,
    seed: int = 0,
    force: bool = False,
    start: Callable[[int], object] = lambda total: None,
    on_bytes: OnBytes = lambda file, count: None,
) -> RandomCheckpoint:
    """Write a checkpoint folder, whole or not at all.

    Args:
        name: one of `SHAPES`.
        destination: a new or empty folder; with `force` it may hold a checkpoint, which is then replaced.
        seed: of the weights.
        start, on_bytes: called with the number of bytes to come, and with the progress.

    Raises:
        CrossdraftError: an unknown name, a folder that holds something, or a disk without room.
    """
    if name not in SHAPES:
        raise CrossdraftError(f"Unknown config '{name}'; choose one of {', '.join(SHAPES)}.")
    _check_destination(destination, force=force)
    layout = layout_of(name)
    plan = planned(layout)
    _check_room(destination, plan.bytes)
    start(plan.bytes)
    generator = torch.Generator().manual_seed(seed)
    with atomic_folder(destination) as folder:
        layout.write_settings(folder)
        for file, tensors in plan.files.items():
            with (folder / file).open("wb") as opened:
                _write_shard(opened, tensors, generator, lambda count, file=file: on_bytes(file, count))
        if len(plan.files) > 1:
            where = {key: file for file, tensors in plan.files.items() for key in tensors}
            index = {"metadata": {"total_size": plan.bytes}, "weight_map": dict(sorted(where.items()))}
            write_json_file(folder / INDEX, index)
    parameters = sum(tensor.numel() for tensor in plan.tensors)
    return RandomCheckpoint(str(destination), name, len(plan.tensors), parameters, plan.bytes, len(plan.files))


def _check_destination(destination: Path, *, force: bool) -> None:
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if not destination.exists() and not destination.is_symlink():
        return
    if not (destination / "config.json").is_file():
        raise CrossdraftError(f"{destination} exists and holds no checkpoint; name a new folder.")
    if not force:
        raise CrossdraftError(f"{destination} exists; add --force to overwrite it, or name another folder.")


def _check_room(destination: Path, wanted: int) -> None:
    parent = next(folder for folder in destination.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if wanted + ROOM > free:
        raise CrossdraftError(
            f"{destination} needs {wanted / 1e9:.1f} GB, but {parent} has {free / 1e9:.1f} GB free; free some space, "
            "choose another disk, or a smaller --config."
        )


def planned(layout: Layout) -> ShardPlan:
    """The model's tensors, cut into shards as `save_pretrained` cuts them."""
    with torch.device("meta"):
        model: Any = AutoModelForImageTextToText.from_config(layout.config, dtype=DTYPE)
    tensors = {layout.rename(key): tensor for key, tensor in model.state_dict().items()}
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: tensor.numel() * tensor.element_size(),
        filename_pattern=PATTERN,
        max_shard_size=layout.shard,
    )
    return ShardPlan({file: {key: tensors[key] for key in keys} for file, keys in split.filename_to_tensors.items()})


def _write_shard(
    file: BinaryIO, tensors: Mapping[str, Tensor], generator: torch.Generator, on_bytes: Callable[[int], None]
) -> None:
    """The safetensors format: the header's length in 8 bytes, the header as JSON, then the tensors one by one."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * DTYPE.itemsize
        header[key] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that every tensor begins at a multiple of 8
    file.write(len(text).to_bytes(8, "little") + text)
    for key, tensor in tensors.items():
        values = random_weight(key, tuple(tensor.shape), generator)
        file.write(values.flatten().view(torch.uint8).numpy().data)
        on_bytes(values.nbytes)


def random_weight(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Weights as a model has them before training, in bfloat16: norms 1, biases 0, all else normal.

    A matrix keeps the size of what it multiplies (variance 1 / width), so that activations stay finite at any depth.
    """
    if key.endswith("bias"):
        return torch.zeros(shape, dtype=DTYPE)
    if "norm" in key or "layrnorm" in key:
        return torch.ones(shape, dtype=DTYPE)
    deviation = 0.02 if len(shape) == 1 or "embed" in key else 1 / math.sqrt(math.prod(shape[1:]))
    return torch.empty(shape, dtype=DTYPE).normal_(0, deviation, generator=generator)
