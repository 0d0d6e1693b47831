"""Where an unsigned µs counter overflowed, in a column of which only parts are to be in memory."""

import numpy as np
from numpy.typing import NDArray

from crossdraft.events.limits import EventLimits
from crossdraft.events.stream import unwrap_time

SCANNED_EVENTS = 1 << 18  # looked at together: 6 MB


def find_wraps(t: NDArray[np.unsignedinteger], bits: int, source: object, limits: EventLimits) -> NDArray[np.int64]:
    """Rows that stand directly behind an overflow of a counter of so many `bits`, rising; see `unwrap_time`.

    Args:
        t: raw counter values [N]; read part by part.

    Raises:
        CrossdraftError: events out of order, or more overflows than fit into `limits.seconds`.
    """
    found, count = [np.empty(0, np.int64)], 0
    for begin in range(0, len(t), SCANNED_EVENTS):
        first = max(begin - 1, 0)
        turns = unwrap_time(t[first : begin + SCANNED_EVENTS], bits, source, first) >> bits
        found.append(np.flatnonzero(np.diff(turns)) + first + 1)
        count += len(found[-1])
        limits.check_span(source, (count - 1) * (1 << bits) / 1e6)
    return np.concatenate(found)
