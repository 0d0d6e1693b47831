"""What DAT and AEDAT 2 share: eight bytes an event, two words of 32 bits, one of them a clock in µs that wraps."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import EventLimits
from crossdraft.events.stream import unwrap_time

EVENT_BYTES = 8
CHUNK_EVENTS = 1_000_000


def word_pairs(file: BinaryIO, order: str, path: Path, limits: EventLimits) -> Iterator[NDArray[np.uint32]]:
    """The words [N, 2] from here to the end of the file, some million events at a time; at least one array.

    Args:
        order: of the bytes of a word, "<" or ">".

    Raises:
        CrossdraftError: the file ends within an event, or beyond `limits.scanned`; told before that much is read.
    """
    left = os.fstat(file.fileno()).st_size - file.tell()
    if left % EVENT_BYTES:
        raise CrossdraftError(f"{path} ends within an event; it was cut off, so copy it again.")
    for done in range(0, max(left, 1), CHUNK_EVENTS * EVENT_BYTES):
        size = min(left - done, CHUNK_EVENTS * EVENT_BYTES)
        limits.check_scanned(path, (done + size) // EVENT_BYTES)
        yield np.frombuffer(file.read(size), f"{order}u4").astype(np.uint32, copy=False).reshape(-1, 2)


class WrappingClock:
    """Undoes the wrap of a 32-bit clock (every 71.6 min) over consecutive chunks; it remembers the last time."""

    def __init__(self, source: object) -> None:
        self._source = source
        self._last_us = 0

    def __call__(self, t: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Whole times of the next chunk; errors as `unwrap_time`."""
        if not len(t):
            return t.astype(np.int64)
        # The last time of the chunk in front goes first, for a wrap may lie between the two.
        wraps, raw = divmod(self._last_us, 1 << 32)
        joined = np.concatenate([np.array([raw], np.uint32), t]) if self._last_us else t
        times = unwrap_time(joined, 32, self._source) + (wraps << 32)
        self._last_us = int(times[-1])
        return times[len(joined) - len(t) :]
