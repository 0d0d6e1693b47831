"""Checks that all weights are finite: those of a checkpoint's files, and those of a model in memory."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from crossdraft.errors import CrossdraftError


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights."""
    return sorted(folder.glob("*.safetensors"))


def require_finite_files(folder: Path, what: str, on_file: Callable[[], None] = lambda: None) -> None:
    """Read every weight of a checkpoint, one after the other; the model is not made.

    Args:
        folder: folder of the checkpoint.
        what: name of the checkpoint in the error.
        on_file: called for every file that was read.

    Raises:
        CrossdraftError: a weight is NaN or infinite.
    """
    for path in weight_files(folder):
        with safe_open(path, "pt") as kept:
            for name in kept.keys():  # noqa: SIM118 - it is no dict
                require_finite_tensor(name, kept.get_tensor(name), f"{what} {folder}")
        on_file()


def require_finite_tensor(name: str, tensor: Tensor, where: str) -> None:
    """Refuse a tensor with a value that is NaN or infinite.

    Raises:
        CrossdraftError: the tensor has such a value.
    """
    if not tensor.is_floating_point():
        return
    if isinstance(tensor, DTensor):  # shared among ranks: each checks its part
        tensor = tensor.to_local()
    if tensor.element_size() == 1:  # an 8-bit float has no sum
        tensor = tensor.to(torch.bfloat16)
    # A sum is NaN or infinite if one of its terms is, and takes no memory; in float64 it does not overflow.
    if not math.isfinite(float(tensor.detach().sum(dtype=torch.float64))):
        raise CrossdraftError(
            f"The weight {name} of {where} is not finite (NaN or infinity); take the checkpoint from its source again."
        )


def require_finite(model: nn.Module, where: object) -> None:
    """Refuse a model with a weight that is NaN or infinite.

    Raises:
        CrossdraftError: there is such a weight; `where` names the model in the message.
    """
    tensors: Mapping[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in tensors.items():
        require_finite_tensor(name, tensor, str(where))
