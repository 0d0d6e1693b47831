"""The clock of a live source, measured by the arrival of what it sends."""

import numpy as np

JUMP_S = 2.0  # by which a source's clock may be ahead of ours, or behind it
LATE_S = 5.0  # for which all may come later than that: what waited in a network is read by then
SETTLE_S = 2.0  # from a segment's first arrival on, in which its offset is measured
LEAST_S, MOST_S = 30, 900  # seconds over which drift is measured


class ArrivalClock:
    """A source's clock against ours: what it dates to a second counts as taken when it arrived.

    In the first two seconds the least delayed arrival counts, as what waited somewhere is late. Where the source's time
    falls, is ahead by more than `JUMP_S`, or is behind by more for `LATE_S`, it has jumped: a new segment begins, which
    is measured anew. Drift is the slope of the delay, of each second the least. `segments` counts the segments.
    """

    def __init__(self) -> None:
        self.segments = 0
        self._first, self._last_s = (0.0, 0.0), 0.0  # the source's second, and the moment of its arrival
        self._late_at = np.inf  # since when all came late
        self._least_s = 0.0  # delay beyond that of the first arrival
        self._delays: dict[int, float] = {}  # the least one of each second since the first arrival

    def saw(self, first_s: float, last_s: float, at: float) -> bool:
        """Take the first and the last time of what arrived at `at`; return true if a new segment begins with it."""
        expected_s = self.source_s(at)
        self._late_at = min(self._late_at, at) if expected_s - last_s > JUMP_S else np.inf
        jumps = first_s < self._last_s or first_s - expected_s > JUMP_S or at - self._late_at > LATE_S
        self._last_s, begins = last_s, jumps or not self.segments
        if begins:
            self.segments += 1
            self._first, self._least_s, self._delays, self._late_at = (last_s, at), 0.0, {}, np.inf
        passed = at - self._first[1]
        delay = passed - (last_s - self._first[0])
        if passed <= SETTLE_S:
            self._least_s = min(self._least_s, delay)
        self._delays[int(passed)] = min(delay, self._delays.get(int(passed), delay))
        if len(self._delays) > MOST_S:
            del self._delays[min(self._delays)]
        return begins

    def source_s(self, at: float) -> float:
        """Return what the source's clock showed at a moment of ours."""
        return self._first[0] + (at - self._first[1]) - self._least_s

    @property
    def drift_ppm(self) -> float | None:
        """Millionths by which the source's clock is slow, by least squares; `None` until it was measured for long."""
        if len(self._delays) < LEAST_S:
            return None
        seconds, delays = np.array(list(self._delays.items())).T
        return round(float(np.polyfit(seconds, delays, 1)[0] * 1e6), 1)
