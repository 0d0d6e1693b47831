"""Free memory, asked for before gigabytes are read."""

import math
import os
from pathlib import Path

import torch

from crossdraft.errors import CrossdraftError


def free_memory(device: torch.device) -> float:
    """Number of bytes that can still be allocated on `device`."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError):  # Windows has no sysconf, macOS not these names
            return math.inf
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), math.inf)


def check_memory(folder: Path, numbers: int, saved: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a checkpoint whose weights do not fit into the memory that is free, before hours of swapping.

    Args:
        folder: folder of the checkpoint, for the error message.
        numbers: how many numbers the weights have.
        saved: bytes of the weights that are given up while the rest is loaded.
        device, dtype: device and dtype of the weights in memory.

    Raises:
        CrossdraftError: the weights do not fit.
    """
    if device.type not in ("cpu", "cuda"):
        return  # free_memory knows no other
    needed, free = numbers * dtype.itemsize - saved, free_memory(device)
    if needed > free:
        half = f"dtype=bfloat16 ({numbers * 2 / 1e9:.1f} GB), " if dtype.itemsize > 2 else ""
        fewer = "quantize=int8 or int4, " if device.type == "cpu" and not saved else ""
        raise CrossdraftError(
            f"The checkpoint {folder} needs {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, and {device} "
            f"has {free / 1e9:.1f} GB free; try {half}{fewer}another device, or a smaller model."
        )
