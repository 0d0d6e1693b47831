"""Threads of this process, among them those by which OpenMP serves others."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

GNU = sys.platform == "linux" and "libgomp" in Path("/proc/self/maps").read_text()
needs_gnu = pytest.mark.skipif(not GNU, reason="PyTorch uses another OpenMP than GNU's")


def cores_of_threads() -> dict[str, set[int]]:
    """The cores of each thread of this process."""
    found: dict[str, set[int]] = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            found[task.name] = os.sched_getaffinity(int(task.name))
    return found


def use_two_threads() -> None:
    """Have the calling thread compute with a helper."""
    torch.set_num_threads(2)
    torch.zeros(2 << 15).add_(1)
