"""Heap trimming: gives freed memory back to the system.

glibc keeps freed blocks below 32 MiB for later. When a model's weights are replaced one by one by blocks of other
sizes, free blocks of a fifth of the model's size can remain; and while requests of all lengths come and go, free blocks
pile up: in half a minute a tenth of the memory of a small pair.
"""

import ctypes
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

TRIM_EVERY = 256 * 1024 * 1024  # bytes; a trim takes milliseconds
REQUESTS = 32  # ended requests after which a trim is due
GROWTH = 16 * 1024 * 1024  # bytes that a process may hold more than after its last trim, before another one is due
INTERVAL_S = 0.5  # least time between two such trims: each takes milliseconds, and the memory is soon wanted again
STATM = Path("/proc/self/statm")


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None


def trim() -> None:
    """Give free memory back to the system, if the C library can."""
    release = _malloc_trim()
    if release is not None:
        release(0)


def resident() -> int:
    """Bytes of this process's resident memory; 0 where the system does not tell."""
    with suppress(OSError):
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class HeapTrimmer:
    """Trims the heap each time that `TRIM_EVERY` bytes were replaced."""

    def __init__(self) -> None:
        self._replaced = 0

    def replaced(self, nbytes: int) -> None:
        """Note that `nbytes` were freed, and as many allocated."""
        self._replaced += nbytes
        if self._replaced >= TRIM_EVERY:
            self.trim()

    def trim(self) -> None:
        """Give back what is free."""
        self._replaced = 0
        trim()


class RequestTrimmer:
    """Trims the heap after every `REQUESTS` requests, and before if the process has grown by `GROWTH` since.

    Only the limit on growth bounds the free memory: with several requests at a time it is 60 MiB after thirty of them.
    Only the limit on requests gives back memory that was in use at the last trim and is free now.
    """

    def __init__(self) -> None:
        self._ended, self._checked, self._least = 0, 0, resident()
        self._trimmed = -math.inf  # when

    def ended(self, count: int = 1) -> None:
        """Note that `count` requests are over, whose memory is free."""
        self._ended += count

    def trim_if_due(self) -> None:
        """Give back free memory, if requests have ended and enough of it is free."""
        if self._ended == self._checked:
            return
        self._checked, held = self._ended, resident()
        self._least = min(self._least, held)
        grown = held > self._least + GROWTH and time.monotonic() >= self._trimmed + INTERVAL_S
        if self._ended >= REQUESTS or grown:
            trim()
            self._ended, self._checked, self._least, self._trimmed = 0, 0, resident(), time.monotonic()
