"""A rate limit on what a WebSocket may send."""

import time
from dataclasses import dataclass, field


@dataclass
class FrameRate:
    """A rate limit: at most so many frames, or bytes, a second, and as many at once."""

    most: int
    left: float = field(init=False)
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = float(self.most)

    def passes(self, count: int = 1) -> bool:
        """True if `count` more may come now."""
        now = time.monotonic()
        self.left = min(float(self.most), self.left + (now - self.since) * self.most)
        self.since = now
        self.left -= count
        return self.left >= 0
