"""Two placements for one answer: one drafter while the target reads, another, or both, from then on.

So a drafter that senses the scene itself may work hidden in a process of its own, and one that looks into the target,
and has to live beside it, takes over when the target has begun to speak. Where both go on, the first one's draft is
what it has prepared by then: nobody waits for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from crossdraft.engine.drafter import Budget, Committed, Draft
from crossdraft.engine.placement import NOTHING, OnToken, Placement
from crossdraft.engine.request import Request
from crossdraft.engine.streams import apart
from crossdraft.engine.timeline import Span


class Join(Protocol):
    """Makes one draft of two; see `drafters.mixture.Blend`."""

    def share(self, budget: Budget, place: int, *, greedy: bool) -> Budget:
        """What the one at that place may draft."""
        ...

    def join(self, drafts: Sequence[Draft], nodes: int, *, greedy: bool) -> Draft:
        """One draft of at most so many nodes."""
        ...

    def learn(self, drafts: Sequence[Draft], said: Sequence[int]) -> None:
        """How the text went on."""
        ...


@dataclass
class _Turn:
    """One answer: whether it is greedy, what was said, and what each of the two has proposed."""

    greedy: bool
    said: tuple[int, ...] = ()
    drafts: tuple[Draft, Draft] = (NOTHING, NOTHING)


class Relay:
    """See the module's text. The later drafter follows the answer from its beginning.

    Args:
        hidden: drafts while the target reads.
        later: drafts from then on.
        join: makes one draft of both's; `None` = the first one's turn is over.
    """

    def __init__(self, hidden: Placement, later: Placement, join: Join | None = None) -> None:
        self.hidden, self.later, self.join = hidden, later, join
        self.needs = replace(
            later.needs,
            video=hidden.needs.video or later.needs.video,
            probes=max(hidden.needs.probes, later.needs.probes),
            remembers=hidden.needs.remembers or later.needs.remembers,
        )
        self._turns: dict[int, _Turn] = {}

    def start(self, ticket: int, request: Request, nodes: int, on_token: OnToken | None) -> None:
        first, second = (apart([request], place)[0] for place in range(2))
        self._turns[ticket] = _Turn(request.sampling.greedy)
        self.hidden.start(ticket, first, nodes, on_token)
        self.later.start(ticket, second, 0, None)

    def ready(self, tickets: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose(tickets, budgets)

    def collect(self, ticket: int) -> Draft:
        self.later.collect(ticket)
        draft = self.hidden.collect(ticket)
        self._turns[ticket].drafts = draft, NOTHING
        return draft

    def propose(self, tickets: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        turns = [self._turns[ticket] for ticket in tickets]
        if self.join is None:
            written = self.later.propose(tickets, budgets)
            for turn, draft in zip(turns, written, strict=True):
                turn.drafts = NOTHING, draft
            return written
        first, second = (
            [self.join.share(b, place, greedy=t.greedy) for b, t in zip(budgets, turns, strict=True)]
            for place in range(2)
        )
        prepared, written = self.hidden.ready(tickets, first), self.later.propose(tickets, second)
        for turn, *drafts in zip(turns, prepared, written, strict=True):
            turn.drafts = replace(drafts[0], refusal=None), drafts[1]  # it is enough if one of them goes on
        return [
            self.join.join(turn.drafts, budget.nodes, greedy=turn.greedy)
            for turn, budget in zip(turns, budgets, strict=True)
        ]

    def commit(self, tickets: Sequence[int], verdicts: Sequence[Committed]) -> None:
        told: tuple[list[Committed], list[Committed]] = ([], [])
        for ticket, verdict in zip(tickets, verdicts, strict=True):
            turn = self._turns[ticket]
            if self.join is not None and turn.said and turn.greedy:
                self.join.learn(turn.drafts, verdict.tokens)
            turn.said += verdict.tokens
            for own, draft in zip(told, turn.drafts, strict=True):
                # As if its own tree had been judged.
                path = draft.tree.follow(verdict.tokens[: len(verdict.path)])
                own.append(replace(verdict, path=tuple(path)))
            turn.drafts = NOTHING, NOTHING
        if self.join is not None:
            self.hidden.commit(tickets, told[0])
        self.later.commit(tickets, told[1])

    def end(self, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            turn = self._turns.pop(ticket, None)
            if turn is not None and turn.said and self.join is None and self.hidden.needs.remembers:
                self.hidden.commit([ticket], [Committed((), turn.said)])
        self.hidden.end(tickets)
        self.later.end(tickets)

    def drain(self) -> list[Span]:
        return [*self.hidden.drain(), *self.later.drain()]

    def close(self) -> None:
        self.hidden.close()
        self.later.close()
