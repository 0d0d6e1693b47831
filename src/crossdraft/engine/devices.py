"""Devices: the device that a name means, its memory, and the sending of small tensors to it."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

USUAL_MEMORY = 8 * 2**30


def resolve(device: str | torch.device | None) -> torch.device:
    """The device that a name means: `None` = the current GPU if there is one, else the CPU; "cuda" = the current."""
    found = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if found.type == "cpu":
        return torch.device("cpu")
    if found.index is not None:
        return found
    current = torch.cuda.current_device() if found.type == "cuda" and torch.cuda.is_available() else 0
    return torch.device(found.type, current)


def usable_device(name: str | torch.device | None, option: str) -> torch.device:
    """Resolve a device's name, and check that the device is here and can hold tensors.

    Args:
        name: name that the user gave; None = the default device.
        option: the user's name for this option, for the error message.

    Raises:
        CrossdraftError: PyTorch knows no such device, cannot use it on this machine, or it holds no values (`meta`).
    """
    try:
        found = resolve(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise _unusable(name, option) from error
    if found.type == "meta":  # its tensors have shapes and nothing in them
        raise _unusable(name, option)
    return found


def _unusable(name: str | torch.device | None, option: str) -> CrossdraftError:
    here = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return CrossdraftError(f"{option} is '{name}', which cannot be used here; choose {' or '.join(here)}.")


def entry_device(model: Any) -> torch.device:
    """Device of a model's input ids: the device of its embedding, even if other layers are elsewhere."""
    embedding = model.get_input_embeddings()
    device: torch.device = embedding.weight.device
    if device.type != "meta":
        return device
    # Its weights are fetched for each pass (accelerate's offloading), to the device that its hook names.
    return torch.device(getattr(getattr(embedding, "_hf_hook", None), "execution_device", None) or "cpu")


def without_cudnn_attention(device: torch.device) -> None:
    """Switch off cuDNN's attention in this process, if the device is a GPU.

    PyTorch prefers it on Hopper and Blackwell. cuDNN builds a plan, in each thread, for each number of keys, and every
    decode pass has another number; on a B200 models with few key heads wrote wrong tokens with it (PyTorch issue
    193893). The setting is for the whole process: PyTorch has no narrower one.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)


def memory_bytes(device: torch.device) -> int:
    """Bytes of a device's memory; for a CPU the machine's memory, limited by this process's control group."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        installed = USUAL_MEMORY
    try:
        allowed = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # there is no limit
        allowed = installed
    return min(installed, allowed)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Send a tensor to a device; to a GPU by pinned memory, so that the caller need not wait for the copy."""
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
