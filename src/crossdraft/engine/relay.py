"""Two placements for one answer: one drafter while the target reads, another from then on.

So a drafter that senses the scene itself may work hidden in a process of its own, and one that looks into the target,
and has to live beside it, takes over when the target has begun to speak.
"""

from collections.abc import Sequence
from dataclasses import replace

from crossdraft.engine.drafter import Budget, Committed, Draft
from crossdraft.engine.placement import OnToken, Placement
from crossdraft.engine.request import Request
from crossdraft.engine.streams import apart
from crossdraft.engine.timeline import Span


class Relay:
    """See the module's text. The later drafter follows the answer from its beginning."""

    def __init__(self, hidden: Placement, later: Placement) -> None:
        self.hidden, self.later = hidden, later
        self.needs = replace(
            later.needs,
            video=hidden.needs.video or later.needs.video,
            probes=max(hidden.needs.probes, later.needs.probes),
            remembers=hidden.needs.remembers or later.needs.remembers,
        )
        self._said: dict[int, tuple[int, ...]] = {}  # ticket -> the answer so far, once it has begun

    def start(self, ticket: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        first, second = (apart([request], place)[0] for place in range(2))
        self.hidden.start(ticket, first, nodes, on_token)
        self.later.start(ticket, second, 0, None)

    def collect(self, ticket: int) -> Draft:
        self.later.collect(ticket)
        return self.hidden.collect(ticket)

    def propose(self, tickets: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        return self.later.propose(tickets, budgets)

    def commit(self, tickets: Sequence[int], verdicts: Sequence[Committed]) -> None:
        told = []
        for ticket, verdict in zip(tickets, verdicts, strict=True):
            # The first tree that was judged was the other's: of its own, which was empty, nothing was accepted.
            told.append(verdict if ticket in self._said else replace(verdict, path=()))
            self._said[ticket] = (*self._said.get(ticket, ()), *verdict.tokens)
        self.later.commit(tickets, told)

    def end(self, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            said = self._said.pop(ticket, ())
            if said and self.hidden.needs.remembers:
                self.hidden.commit([ticket], [Committed((), said)])
        self.hidden.end(tickets)
        self.later.end(tickets)

    def drain(self) -> list[Span]:
        return [*self.hidden.drain(), *self.later.drain()]

    def close(self) -> None:
        self.hidden.close()
        self.later.close()
