"""Ledger: the times of one request. It observes; nothing is decided by it."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline, covered

READING = ("prepare", "encode", "prefill")  # the target's lane before the ride-along pass


class Ledger:
    """Stats and timeline of one request, from the moment it was taken up.

    Args:
        stats: to be filled.
    """

    def __init__(self, stats: Stats) -> None:
        self.stats = stats
        self.timeline = Timeline()
        self.started = time.perf_counter()
        self._waits: list[tuple[float, float]] = []  # when the target waited for the drafter: start and end of each
        self._read_until = math.inf  # when the target's reading ended
        self.first_round = math.inf  # when the first round after it began

    @property
    def drafted(self) -> bool:
        """True if the drafter took any part."""
        return any(span.lane == "drafter" for span in self.timeline.spans)

    def waited(self, start: float, end: float, spans: Iterable[Span]) -> None:
        """The target called the drafter, whose spans since the last call are these."""
        self._waits.append((start, end))
        # A late span of the request before (its last commit) may come along.
        self.timeline.spans.extend(span for span in spans if span.start >= self.started)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage of the target's reading."""
        with self.timeline.span("target", name):
            yield

    def read_chunk(self, start: float, end: float, tokens: int) -> None:
        """The target read so many tokens of the prompt."""
        self.timeline.spans.append(Span("target", "prefill", start, end, tokens))

    def rides_along(self, start: float, end: float, tokens: int, seconds: float) -> None:
        """The pass over the prompt's last piece is done; the target's forward took so long."""
        self._read_until = start
        self.timeline.spans.append(Span("target", "ride-along", start, end, tokens))
        self.stats.add_time("ride-along", seconds)

    def prefilled(self) -> None:
        """All of the prompt was read."""
        self._read_until = min(self._read_until, time.perf_counter())
        for stage in READING:
            self.stats.add_time(stage, self.timeline.total("target", stage))
        self.stats.add_time("ride-along", 0.0)  # an answer without one says so
        self._count_hidden()

    def close(self) -> None:
        """The request leaves the batch."""
        self.stats.total_s = time.perf_counter() - self.started
        self._count_hidden()
        self._count_waits()

    def _count_hidden(self) -> None:
        """Add up the hidden drafting known so far; the spans of a late draft come only with a later reply."""
        drafter = [span for span in self.timeline.spans if span.lane == "drafter"]
        late = {"read", "hidden draft"} if any(span.name == "hidden draft" for span in drafter) else set[str]()
        hidden = [span for span in drafter if span.start < self._read_until or span.name in late]
        # What ran before the target began to read (inline, one after the other) was not hidden.
        reading = [span for span in self.timeline.spans if span.lane == "target" and span.name in READING]
        self.stats.hidden_drafting_s = sum(span.seconds for span in hidden)
        self.stats.hidden_inside_s = sum(part.overlap(span.start, span.end) for part in hidden for span in reading)
        first = next((span.end - self.started for span in hidden if span.name == "read"), None)
        if first is not None and self.stats.ttft_s and first >= self.stats.ttft_s:
            first = None  # what comes after the first final token is not provisional
        self.stats.first_provisional_s = first

    def _count_waits(self) -> None:
        """Part what the target waited into the drafter's computing, and sending, packing and idling.

        In the rounds they are the stages `draft` and `communication`, before these with `hidden` in front.
        """
        drafter = [span for span in self.timeline.spans if span.lane == "drafter"]
        for start, end in self._waits:
            computing, when = covered(drafter, start, end), "" if start >= self.first_round else "hidden "
            self.stats.add_time(f"{when}draft", computing)
            self.stats.add_time(f"{when}communication", end - start - computing)
