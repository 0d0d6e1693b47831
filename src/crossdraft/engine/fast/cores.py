"""Which CPU cores this process may use, and restricting it to some of them, where the system can do that.

Linux tells and restricts. macOS and Windows do neither through Python: there the cores are numbered 0, 1, … and only
the number of threads follows from what was asked for.
"""

import os
from collections.abc import Iterable


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
