"""Progress of a process that works for another one: when it last finished a piece of its work.

A process that computes for minutes is as silent as one that hangs. So its worker marks every piece that it has finished
(a layer, a part of a file, a step) by `progress`, and who waits for it reads the time in memory that both map. No
message and no thread is needed for that, and one that loops without an end marks nothing.
"""

import time
from contextvars import ContextVar

PROGRESS_BYTES = 8


class ProgressClock:
    """The time of the last piece of work, by `time.monotonic`, which all processes of a machine share.

    Args:
        memory: `PROGRESS_BYTES` that the working process and the waiting one map.
    """

    def __init__(self, memory: memoryview) -> None:
        self._time = memory.cast("d")

    def get(self) -> float:
        """Seconds; 0 = nothing is finished yet."""
        return self._time[0]

    def mark(self) -> None:
        """Note that a piece of work is finished now."""
        self._time[0] = time.monotonic()


_clock: ContextVar[ProgressClock | None] = ContextVar("progress", default=None)


def mark_on(clock: ProgressClock) -> None:
    """Have `progress` mark that clock from now on, in the calling thread only."""
    _clock.set(clock)


def progress() -> None:
    """Say that a piece of work is finished; a drafter that takes seconds calls it. Takes a fraction of a microsecond.

    Without a clock, as no other process waits, nothing happens.
    """
    if (clock := _clock.get()) is not None:
        clock.mark()
