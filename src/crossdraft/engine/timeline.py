"""Named spans of time per lane, and their export as a Chrome/Perfetto trace.

`time.perf_counter` reads the system-wide monotonic clock on Linux, so spans of the drafter's process and of the
target's stand on one axis.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from crossdraft.errors import CrossdraftError

READ, HIDDEN_DRAFT = "read", "hidden draft"  # names of a drafter's spans, of which the `Ledger` adds up its own time


@dataclass(frozen=True)
class Span:
    """`name` ran on `lane` from `start` to `end` (seconds on the monotonic clock); `tokens` it handled."""

    lane: str
    name: str
    start: float
    end: float
    tokens: int = 0

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.end - self.start

    def overlap(self, start: float, end: float) -> float:
        """Seconds of this span inside [start, end]."""
        return max(0.0, min(self.end, end) - max(self.start, start))


def covered(spans: Iterable[Span], start: float, end: float) -> float:
    """Seconds of [start, end] in which at least one of the spans ran.

    >>> covered([Span("drafter", "read", 0, 2), Span("drafter", "draft", 1, 3)], 0.5, 10)
    2.5
    """
    total, until = 0.0, start
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, min(span.end, end) - max(span.start, until))
        until = max(until, span.end)
    return total


@dataclass
class Timeline:
    """Spans in the order in which they ended. An observer: it never changes a result."""

    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def span(self, lane: str, name: str, tokens: int = 0) -> Iterator[None]:
        """Record the time that the body takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spans.append(Span(lane, name, start, time.perf_counter(), tokens))

    def total(self, lane: str, *names: str) -> float:
        """Seconds spent in a lane, in the named spans or in all."""
        return sum(span.seconds for span in self.spans if span.lane == lane and (not names or span.name in names))

    @property
    def start(self) -> float:
        """Time at which the first span began; 0 if there is none."""
        return min((span.start for span in self.spans), default=0.0)

    def to_chrome(self) -> dict[str, object]:
        """The trace as Chrome's JSON object (open it in https://ui.perfetto.dev); times in microseconds."""
        lanes = sorted({span.lane for span in self.spans})
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": lanes.index(lane), "args": {"name": lane}}
            for lane in lanes
        ]
        zero = self.start
        events += [
            {
                "ph": "X",
                "name": span.name,
                "pid": 0,
                "tid": lanes.index(span.lane),
                "ts": round((span.start - zero) * 1e6, 1),
                "dur": round(span.seconds * 1e6, 1),
                "args": {"tokens": span.tokens},
            }
            for span in self.spans
        ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write `to_chrome()` to a file."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.to_chrome(), file)
        except OSError as error:
            raise CrossdraftError(f"Cannot write the trace to {path}: {error.strerror}.") from error
