"""CPU cores that this process may use, and its restriction to some of them, where the system can do that.

Linux lists the cores and restricts a process to some. macOS and Windows do neither through Python: there the cores are
numbered 0, 1, … and only the number of threads follows from the cores that were asked for.
"""

import os
from collections.abc import Iterable, MutableMapping

SPIN_COUNT = "10000"  # about 0.4 ms


def available_cores() -> tuple[int, ...]:
    """Numbers of the cores that the calling thread may use, rising, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    count = getattr(os, "process_cpu_count", os.cpu_count)  # the first since Python 3.13
    return tuple(range(count() or 1))


def bind_cores(cores: Iterable[int]) -> bool:
    """Restrict the calling thread, and threads that it starts later, to these cores; False where nothing can."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, set(cores))
    return True


def spin_shortly(environment: MutableMapping[str, str]) -> None:
    """Have idle OpenMP threads sleep soon, so that others get their cores; see `engine.fast.elastic`.

    Args:
        environment: environment in which PyTorch will be imported; its own settings are kept.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
