"""SharedPassTimes: writes the times of a pass that several requests share into the ledger of each."""

import time
from collections.abc import Sequence

from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.timeline import Span


class SharedPassTimes:
    """Times of one pass of several requests, for their ledgers.

    Args:
        rows: the requests.
        parts: what each reads: a chunk, and what is left of that piece of its prompt.
    """

    def __init__(self, rows: Sequence[RequestState], parts: Sequence[tuple[Chunk, Chunk | None]]) -> None:
        self._rows, self._reads = tuple(rows), tuple(bool(row.pending) for row in rows)
        self._first = tuple(not row.tokens for row in rows)
        self.prompts = sum(self._reads)
        self.prompt_tokens = sum(len(part.tokens) for (part, _), reads in zip(parts, self._reads, strict=True) if reads)
        self._start = self._drafted = time.perf_counter()

    def drafted(self) -> None:
        """Note the time at which the drafts are here."""
        self._drafted = time.perf_counter()

    def verified(self, end: float, seconds: float, passed: Sequence[PassRow]) -> None:
        """Record the times of the pass, which took `seconds` of the device and ended at `end`."""
        for row, reads, first, one in zip(self._rows, self._reads, self._first, passed, strict=True):
            ledger = row.ledger
            if reads and (not first or one.chunk.skip_logits or not row.drafting):
                ledger.read_chunk(self._drafted, end, len(one.chunk.tokens))
            elif reads:
                ledger.rides_along(self._drafted, end, len(one), seconds)
            else:
                ledger.first_round = min(ledger.first_round, self._start)
                ledger.timeline.spans.append(Span("target", "verify", self._drafted, end, len(one)))
                ledger.stats.add_time("verify", seconds)
            if reads and first and not one.chunk.skip_logits:
                ledger.prefilled()

    def end(self) -> None:
        """Record the time of the round, whose tokens were handed out."""
        seconds = time.perf_counter() - self._start
        for row, reads in zip(self._rows, self._reads, strict=True):
            if not reads:
                row.ledger.stats.add_time("rounds", seconds)
