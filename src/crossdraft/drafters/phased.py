"""The drafter `phased`: one while the target reads, another afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.drafters.union import all_needs
from crossdraft.engine.drafter import Budget, Committed, Draft, Drafter
from crossdraft.engine.request import Request


@dataclass(eq=False)
class Phases:
    """One answer: both drafters' states, and whether the target has begun to answer."""

    hidden: Any
    later: Any
    answering: bool = False


class PhasedDrafter:
    """Drafts with `hidden` until the first commit, with `later` from then on.

    Both follow the answer from its beginning, so that the second one is ready when its turn comes.
    """

    def __init__(self, hidden: Drafter[Any], later: Drafter[Any]) -> None:
        self.hidden = hidden
        self.later = later
        self.needs = all_needs([hidden.needs, later.needs])

    def begin(self, requests: Sequence[Request]) -> list[Phases]:
        pairs = zip(self.hidden.begin(requests), self.later.begin(requests), strict=True)
        return [Phases(hidden, later) for hidden, later in pairs]

    def propose(self, states: Sequence[Phases], budgets: Sequence[Budget]) -> list[Draft]:
        drafts: list[Draft] = []
        for state, budget in zip(states, budgets, strict=True):
            if state.answering:
                drafts += self.later.propose([state.later], [budget])
            else:
                drafts += self.hidden.propose([state.hidden], [budget])
        return drafts

    def commit(self, states: Sequence[Phases], verdicts: Sequence[Committed]) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            if state.answering:
                self.later.commit([state.later], [verdict])
            else:
                state.answering = True
                # The tree that was judged was the other's: of its own, which was empty, nothing was accepted.
                self.later.commit([state.later], [replace(verdict, path=())])

    def fork(self, states: Sequence[Phases]) -> list[Phases]:
        return [self._fork(state) for state in states]

    def end(self, states: Sequence[Phases]) -> None:
        self.hidden.end([state.hidden for state in states])
        self.later.end([state.later for state in states])

    def _fork(self, state: Phases) -> Phases:
        # Once the target answers, nothing happens to the hidden one's state any more.
        hidden = state.hidden if state.answering else self.hidden.fork([state.hidden])[0]
        return Phases(hidden, self.later.fork([state.later])[0], state.answering)
