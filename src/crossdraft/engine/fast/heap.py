"""Memory that was freed, given back to the system.

glibc keeps freed blocks below 32 MiB for later. Where a model's weights are replaced one by one by blocks of other
sizes, a fifth of the model can stay behind that way; and where requests of all lengths come and go, free blocks pile
up: in half a minute a tenth of what a small pair holds.
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
REQUESTS = 32  # that ended, after which a trim is due
GROWTH = 16 * 1024 * 1024  # bytes that a process may hold more than after its last trim, before another one is due
INTERVAL_S = 0.5  # between two of these at least: each takes milliseconds, and what it gives back is soon wanted again
STATM = Path("/proc/self/statm")


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None


def trim() -> None:
    """Give back what is free, where the C library can."""
    release = _malloc_trim()
    if release is not None:
        release(0)


def resident() -> int:
    """Bytes of this process's resident memory; 0 where the system does not tell."""
    with suppress(OSError):
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class HeapTrimmer:
    """Trims the heap each time that so many bytes were replaced."""

    def __init__(self) -> None:
        self._replaced = 0

    def replaced(self, nbytes: int) -> None:
        """Note that so much was freed, and as much allocated."""
        self._replaced += nbytes
        if self._replaced >= TRIM_EVERY:
            self.trim()

    def trim(self) -> None:
        """Give back what is free."""
        self._replaced = 0
        trim()


class RequestTrimmer:
    """Trims the heap after every `REQUESTS` requests, and before if the process has grown by `GROWTH` since.

    Only the second bounds what lies free: with several requests at a time it is 60 MiB after thirty of them. Only the
    first gives back what was in use at the last trim, and is no more.
    """

    def __init__(self) -> None:
        self._ended, self._checked, self._least = 0, 0, resident()
        self._trimmed = -math.inf  # when

    def ended(self, count: int = 1) -> None:
        """Note that so many requests are over, and what they held is free."""
        self._ended += count

    def trim_if_due(self) -> None:
        """Give back what is free, if requests have ended and there is enough of it."""
        if self._ended == self._checked:
            return
        self._checked, held = self._ended, resident()
        self._least = min(self._least, held)
        grown = held > self._least + GROWTH and time.monotonic() >= self._trimmed + INTERVAL_S
        if self._ended >= REQUESTS or grown:
            trim()
            self._ended, self._checked, self._least, self._trimmed = 0, 0, resident(), time.monotonic()
