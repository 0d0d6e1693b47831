"""The drafter `phased`: one while the target reads, another afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.drafters.combine.union import all_needs
from crossdraft.engine.drafter import Budget, Draft, Drafter, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.streams import apart


@dataclass(eq=False)
class Phases:
    """One answer: both drafters' states, and what the target has answered so far, once it has begun."""

    hidden: Any
    later: Any
    said: tuple[int, ...] = ()

    @property
    def answering(self) -> bool:
        """Whether the hidden drafter's turn is over."""
        return bool(self.said)


class PhasedDrafter:
    """Drafts with `hidden` until the first commit, with `later` from then on.

    The second one follows the answer from its beginning, so that it is ready when its turn comes; the first one is told
    all of it at its end, for whatever it remembers.
    """

    def __init__(self, hidden: Drafter[Any], later: Drafter[Any]) -> None:
        self.hidden = hidden
        self.later = later
        self.needs = all_needs([hidden.needs, later.needs])

    def begin(self, requests: Sequence[Request]) -> list[Phases]:
        hidden, later = self.hidden.begin(apart(requests, 0)), self.later.begin(apart(requests, 1))
        return [Phases(*states) for states in zip(hidden, later, strict=True)]

    def propose(self, states: Sequence[Phases], budgets: Sequence[Budget]) -> list[Draft]:
        drafts: list[Draft] = []
        for state, budget in zip(states, budgets, strict=True):
            if state.answering:
                drafts += self.later.propose([state.later], [budget])
            else:
                drafts += self.hidden.propose([state.hidden], [budget])
        return drafts

    def commit(self, states: Sequence[Phases], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            # The first tree that was judged was the other's: of its own, which was empty, nothing was accepted.
            self.later.commit([state.later], [output if state.answering else replace(output, path=())])
            state.said += output.tokens

    def fork(self, states: Sequence[Phases]) -> list[Phases]:
        return [self._fork(state) for state in states]

    def end(self, states: Sequence[Phases]) -> None:
        if self.hidden.needs.nothing:  # else it cannot be told without the target's features
            for state in states:
                if state.said:
                    self.hidden.commit([state.hidden], [VerifyOutput((), state.said)])
        self.hidden.end([state.hidden for state in states])
        self.later.end([state.later for state in states])

    def _fork(self, state: Phases) -> Phases:
        # Once the target answers, nothing happens to the hidden one's state any more.
        hidden = state.hidden if state.answering else self.hidden.fork([state.hidden])[0]
        return Phases(hidden, self.later.fork([state.later])[0], state.said)
