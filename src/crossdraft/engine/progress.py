"""Progress of a process that works for another one: when it last finished a piece of its work.

A process that computes for minutes is as silent as one that hangs. So it marks every finished piece of work (a layer, a
part of a file, a step) by `progress`, and the process that waits reads the time in memory that both map. That needs no
message and no thread, and a process in an endless loop marks nothing.
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
        """Time of the last finished piece of work, in seconds; 0 = none yet."""
        return self._time[0]

    def mark(self) -> None:
        """Note that a piece of work is finished now."""
        self._time[0] = time.monotonic()


_clock: ContextVar[ProgressClock | None] = ContextVar("progress", default=None)


def mark_on(clock: ProgressClock) -> None:
    """Have `progress` mark this clock from now on, in the calling thread only."""
    _clock.set(clock)


def progress() -> None:
    """Mark that a piece of work is finished, in a fraction of a microsecond; drafters that take seconds call this.

    Without a clock no other process waits, and nothing happens.
    """
    if (clock := _clock.get()) is not None:
        clock.mark()
