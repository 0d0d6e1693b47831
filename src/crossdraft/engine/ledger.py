"""Ledger: records the times of one request, for reports; the policy weighs the drafter's own time of them."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import HIDDEN_DRAFT, READ, Span, Timeline, covered

READING = ("prepare", "encode", "prefill")  # the target's lane before the ride-along pass


class Ledger:
    """Stats and timeline of one request, from the moment it was taken up.

    Args:
        stats: statistics to be filled.
    """

    def __init__(self, stats: Stats) -> None:
        self.stats = stats
        self.timeline = Timeline()
        self.started = time.perf_counter()
        self._waits: list[tuple[float, float]] = []  # start and end of each wait of the target for the drafter
        self._read_until = math.inf  # end of the target's reading
        self.first_round = math.inf  # begin of the first round after the reading

    @property
    def drafted(self) -> bool:
        """True if the drafter took any part."""
        return any(span.lane == "drafter" for span in self.timeline.spans)

    def waited(self, start: float, end: float, spans: Iterable[Span]) -> None:
        """Record a call of the drafter by the target, with the drafter's `spans` since the last call."""
        self._waits.append((start, end))
        # A late span of the request before (its last commit) may come along.
        self.timeline.spans.extend(span for span in spans if span.start >= self.started)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record a stage of the target's reading while the context is open."""
        with self.timeline.span("target", name):
            yield

    def read_chunk(self, start: float, end: float, tokens: int) -> None:
        """Record that the target read `tokens` tokens of the prompt."""
        self.timeline.spans.append(Span("target", "prefill", start, end, tokens))

    def rides_along(self, start: float, end: float, tokens: int, seconds: float) -> None:
        """Record the pass over the prompt's last piece; `seconds` is the time of the target's forward."""
        self._read_until = start
        self.timeline.spans.append(Span("target", "ride-along", start, end, tokens))
        self.stats.add_time("ride-along", seconds)

    def prefilled(self) -> None:
        """Record that the whole prompt was read."""
        self._read_until = min(self._read_until, time.perf_counter())
        for stage in READING:
            self.stats.add_time(stage, self.timeline.total("target", stage))
        self.stats.add_time("ride-along", 0.0)  # an answer without one says so
        self._count_hidden()

    def close(self) -> None:
        """Finish the statistics when the request leaves the batch."""
        self.stats.total_s = time.perf_counter() - self.started
        self._count_hidden()
        self._count_waits()

    def _count_hidden(self) -> None:
        """Add up the hidden drafting known so far, if it made a token; a late draft's spans come with later replies."""
        drafter = [span for span in self.timeline.spans if span.lane == "drafter"]
        if not any(span.name == HIDDEN_DRAFT and span.tokens for span in drafter):
            return
        hidden = [span for span in drafter if span.start < self._read_until or span.name in (READ, HIDDEN_DRAFT)]
        # Drafting before the target began to read (inline, one after the other) was not hidden.
        reading = [span for span in self.timeline.spans if span.lane == "target" and span.name in READING]
        self.stats.hidden_drafting_s = sum(span.seconds for span in hidden)
        self.stats.hidden_inside_s = sum(part.overlap(span.start, span.end) for part in hidden for span in reading)
        first = next((span.end - self.started for span in hidden if span.name == READ), None)
        if first is not None and self.stats.ttft_s and first >= self.stats.ttft_s:
            first = None  # what comes after the first final token is not provisional
        self.stats.first_provisional_s = first

    def _count_waits(self) -> None:
        """Split the target's waits into the drafter's computing, and sending, packing and idling.

        In the rounds they are the stages `draft` and `communication`; before the rounds, the same with prefix `hidden`.
        """
        drafter = [span for span in self.timeline.spans if span.lane == "drafter"]
        for start, end in self._waits:
            computing, when = covered(drafter, start, end), "" if start >= self.first_round else "hidden "
            self.stats.add_time(f"{when}draft", computing)
            self.stats.add_time(f"{when}communication", end - start - computing)
