"""Limit on how often a lost drafter may be restarted."""

import time
from collections.abc import Callable

RESTARTS = 3  # most restarts
WINDOW_S = 600.0  # within this time
BACKOFF_S = 0.5


class Restarts:
    """The losses of a drafter, and how long to wait before it is restarted.

    Args:
        most: restarts within `WINDOW_S`; 0 = none.
        clock: seconds, as `time.monotonic`.
        backoff_s: seconds before the first restart; four times as long before each further one.
    """

    def __init__(
        self, most: int = 0, clock: Callable[[], float] = time.monotonic, backoff_s: float = BACKOFF_S
    ) -> None:
        self.most = most
        self._clock, self._backoff_s = clock, backoff_s
        self._losses: list[float] = []

    def lost(self, why: str) -> tuple[float, str]:
        """Note a loss; returns the seconds until the next restart, and why there is no drafter until then."""
        now = self._clock()
        self._losses = [at for at in self._losses if now - at < WINDOW_S] + [now]
        count = len(self._losses)
        if count <= self.most:
            return self._backoff_s * 4 ** (count - 1), f"{why}, and is being restarted"
        until = self._losses[count - 1 - self.most] + WINDOW_S - now
        often = f"for the {count}th time in {WINDOW_S / 60:g} minutes"
        return until, f"{why}, {often}, and is restarted {until / 60:.0f} minutes later"
