"""Devices: which one a name means, whether two names mean the same, and how small tensors are sent to one."""

import torch
from torch import Tensor


def resolve(device: str | torch.device | None) -> torch.device:
    """The device that is meant: `None` = the current GPU if there is one, else the CPU; "cuda" is one GPU of them."""
    found = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if found.type == "cpu":
        return torch.device("cpu")
    if found.index is not None:
        return found
    current = torch.cuda.current_device() if found.type == "cuda" and torch.cuda.is_available() else 0
    return torch.device(found.type, current)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. To a GPU it goes by pinned memory, so that the caller need not wait for the copy."""
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
