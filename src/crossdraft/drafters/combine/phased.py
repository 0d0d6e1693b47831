"""The drafter `phased`: one while the target reads, another afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.drafters.combine.grouped import propose_grouped
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.seeds import split_seeds


@dataclass(eq=False)
class PhasedState:
    """One answer: both drafters' states, and what the target has answered so far, once it has begun."""

    hidden: Any
    later: Any
    answered: tuple[int, ...] = ()

    @property
    def answering(self) -> bool:
        """Whether the hidden drafter's turn is over."""
        return bool(self.answered)


class PhasedDrafter:
    """Drafts with `hidden` until the first commit, with `later` from then on.

    The second one follows the answer from its beginning, so that it is ready when its turn comes. The first one ends
    with its turn; if it learns from answers, all of this one is committed to it at its end.
    """

    def __init__(self, hidden: Drafter[Any], later: Drafter[Any]) -> None:
        self.hidden = hidden
        self.later = later
        self.needs = Needs.of_all([hidden.needs, later.needs])
        # Who needs the target's features cannot learn from an answer without them.
        self._teaches_hidden = hidden.needs.nothing and hidden.needs.learns

    def begin(self, requests: Sequence[Request]) -> list[PhasedState]:
        hidden, later = self.hidden.begin(split_seeds(requests, 0)), self.later.begin(split_seeds(requests, 1))
        return [PhasedState(*states) for states in zip(hidden, later, strict=True)]

    def propose(self, states: Sequence[PhasedState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[PhasedState], budgets: Sequence[Budget]) -> Proposal:
        """See `AsyncDrafter`."""
        turns = [self.later if state.answering else self.hidden for state in states]
        own = [state.later if state.answering else state.hidden for state in states]
        return propose_grouped(turns, own, budgets)

    def commit(self, states: Sequence[PhasedState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            # The first tree that was verified was the other's: of its own, which was empty, nothing was accepted.
            self.later.commit([state.later], [output if state.answering else replace(output, path=())])
            if not state.answering and not self._teaches_hidden:
                self.hidden.end([state.hidden])
            state.answered += output.tokens

    def fork(self, states: Sequence[PhasedState]) -> list[PhasedState]:
        return [self._fork(state) for state in states]

    def end(self, states: Sequence[PhasedState]) -> None:
        for state in states:
            if state.answering and self._teaches_hidden:
                self.hidden.commit([state.hidden], [VerifyOutput((), state.answered)])
            if not state.answering or self._teaches_hidden:
                self.hidden.end([state.hidden])
        self.later.end([state.later for state in states])

    def _fork(self, state: PhasedState) -> PhasedState:
        # Once the target answers, nothing happens to the hidden one's state any more.
        hidden = state.hidden if state.answering else self.hidden.fork([state.hidden])[0]
        return PhasedState(hidden, self.later.fork([state.later])[0], state.answered)
