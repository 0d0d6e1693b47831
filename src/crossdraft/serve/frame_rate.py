"""How fast a WebSocket may send."""

import time
from dataclasses import dataclass, field


@dataclass
class FrameRate:
    """How many frames may come: so many a second, and as many at once."""

    most: int
    left: float = field(init=False)
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = float(self.most)

    def passes(self) -> bool:
        """Whether one more may come now."""
        now = time.monotonic()
        self.left = min(float(self.most), self.left + (now - self.since) * self.most)
        self.since = now
        self.left -= 1
        return self.left >= 0
