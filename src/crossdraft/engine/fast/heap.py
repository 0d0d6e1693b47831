"""Memory that was freed, given back to the system.

glibc keeps freed blocks below 32 MiB for later. Where a model's weights are replaced one by one by blocks of other
sizes, a fifth of the model can stay behind that way; and where requests of all lengths come and go, memory grows for
hours.
"""

import ctypes
from collections.abc import Callable
from functools import cache

TRIM_EVERY = 256 * 1024 * 1024  # bytes; a trim takes milliseconds
REQUESTS = 32  # that ended, after which a trim is due


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None


class HeapTrimmer:
    """Trims the heap each time that so much was replaced: bytes, or requests, of which each holds some memory."""

    def __init__(self, every: int = TRIM_EVERY) -> None:
        self._every, self._replaced = every, 0

    def replaced(self, count: int) -> None:
        """Note that so much was freed, and as much allocated."""
        self._replaced += count
        if self._replaced >= self._every:
            self.trim()

    def trim(self) -> None:
        """Give back what is free, where the C library can."""
        self._replaced = 0
        trim = _malloc_trim()
        if trim is not None:
            trim(0)
