"""Threads of this process, among them those by which OpenMP serves others."""

import os
import sys
import time
from collections.abc import Callable
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


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until something is so, at most half a minute: threads end some time after they were told to."""
    end = time.monotonic() + 30
    while not what() and time.monotonic() < end:
        time.sleep(0.01)


def use_two_threads() -> None:
    """Have the calling thread compute with a helper."""
    torch.set_num_threads(2)
    torch.zeros(2 << 15).add_(1)
