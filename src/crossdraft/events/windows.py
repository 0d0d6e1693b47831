"""Adaptive temporal windows: a long recording as a few short windows, where its events are (after EventFlash, 2026).

Equal-count slices of a long recording fail in two ways. They are long, so that motion smears and the sensor's noise
covers moving objects; and noise, which goes on in still scenes, fills slices of its own. So the recording is divided
into up to 1,000 bins of time, the background rate is subtracted, the windows share the rest equally, and each is
shortened to its busiest stretch of a length for which the model was made.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events

BINS = 1_000
LEAST_BIN_US = 10_000
BACKGROUND = 0.25  # quantile of the bins' counts that counts as noise
STEPS = 4  # positions per length at which a stretch is tried


def adaptive_windows(events: Events, count: int, longest_us: int, bins: int = BINS) -> list[slice]:
    """Rows of `count` windows, in time order, each with at least one event.

    Args:
        events: a recording.
        count: number of windows.
        longest_us: largest length of a window in µs.
        bins: largest number of bins of time.

    Raises:
        CrossdraftError: fewer events than windows, or an invalid number.
    """
    if min(count, longest_us, bins) < 1:
        raise CrossdraftError(f"{count} windows of {longest_us} µs out of {bins} bins hold nothing; give more of each.")
    if len(events) < count:
        raise CrossdraftError(f"{len(events)} events cannot fill {count} windows; take a longer recording or fewer.")
    cuts = equal_shares(events, count, bins).tolist()
    return [_busiest(events, first, last, longest_us) for first, last in pairwise(cuts)]


def equal_shares(events: Events, count: int, bins: int = BINS) -> NDArray[np.int64]:
    """Rows [count + 1] between which equal shares of the events above the background lie; they rise strictly."""
    span = events.duration_us + 1
    bins = min(bins, max(count, span // LEAST_BIN_US))
    rows = np.searchsorted(events.t, events.t0 + np.arange(bins + 1) * span // bins)
    found = np.diff(rows)
    # Where something moves all the time, the quantile is not background: at least half of all events count.
    background = min(float(np.quantile(found, BACKGROUND)), found.mean() / 2)
    above = np.maximum(found - background, 0)
    shares = np.concatenate([[0.0], above.cumsum() / above.sum()])
    cuts = np.rint(np.interp(np.linspace(0, 1, count + 1), shares, rows)).astype(np.int64)
    cuts[[0, -1]] = 0, len(events)
    steps = np.arange(count + 1)
    cuts = np.maximum.accumulate(cuts - steps) + steps
    return np.minimum(cuts, len(events) - steps[::-1])


def _busiest(events: Events, first: int, last: int, longest_us: int) -> slice:
    """Rows in `first` … `last` - 1 of the busiest stretch of that length; all, if they span no more."""
    t = events.t[first:last]
    if t[-1] - t[0] < longest_us:
        return slice(first, last)
    starts = np.arange(t[0], t[-1], max(1, longest_us // STEPS))
    begin, end = np.searchsorted(t, starts), np.searchsorted(t, starts + longest_us)
    best = int((end - begin).argmax())
    return slice(first + int(begin[best]), first + int(end[best]))
