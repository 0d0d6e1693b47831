"""The drafter `phased`: one drafter while the target reads, another afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.drafters.combine.grouped import propose_grouped
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Needs, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError

GAVE_UP = "The drafter of the prefill gave up ({}); the other one drafted."


@dataclass(eq=False)
class PhasedState:
    """One answer: both drafters' states, and what the target has answered so far, once it has begun.

    Args:
        hidden, later: the states; `None` for a drafter that did not begin.
        hidden_refusal, later_refusal: reason for which that drafter drafts nothing.
        answered: tokens of the answer.
    """

    hidden: Any = None
    later: Any = None
    hidden_refusal: str | None = None
    later_refusal: str | None = None
    answered: tuple[int, ...] = ()

    @property
    def hides(self) -> bool:
        """True if it is the hidden drafter's turn."""
        return not self.answered and self.hidden_refusal is None


class PhasedDrafter:
    """Drafts with `hidden` until the first commit, with `later` from then on.

    The second drafter follows the answer from its beginning, so that it is ready when its turn comes. The first ends
    with its turn; if it learns from answers, the whole answer is committed to it at the end.

    A refusal concerns the refuser's turn only. If the first drafter refuses a request, the second drafts as if it were
    alone, at once if it needs nothing of the target; a note says so if the refusal came during the prefill.
    """

    def __init__(self, hidden: Drafter[Any], later: Drafter[Any]) -> None:
        self.hidden = hidden
        self.later = later
        self.needs = Needs.of_all([hidden.needs, later.needs])
        # A drafter that needs the target's features cannot learn from an answer without them.
        self._teaches_hidden = hidden.needs.nothing and hidden.needs.learns

    def begin(self, requests: Sequence[Request]) -> list[PhasedState]:
        return [self._begin(request) for request in requests]

    def propose(self, states: Sequence[PhasedState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[PhasedState], budgets: Sequence[Budget]) -> Proposal:
        """See `AsyncDrafter`."""
        begun = self._ask(states, budgets)

        def wait() -> list[Draft]:
            drafts = begun()
            refused = [i for i, draft in enumerate(drafts) if states[i].hides and draft.refusal is not None]
            for i in refused:
                self._refuse(states[i], drafts[i].refusal)
            again = self._ask([states[i] for i in refused], [budgets[i] for i in refused])()
            for i, draft in zip(refused, again, strict=True):
                drafts[i] = draft
            return [_noted(draft, state) for draft, state in zip(drafts, states, strict=True)]

        return wait

    def commit(self, states: Sequence[PhasedState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            if state.later_refusal is None:
                # A tree of the hidden drafter was verified; the later one's tree was empty, and nothing was accepted.
                own = replace(output, path=()) if state.hides else output
                self.later.commit([state.later], [own])
            if state.hides and not self._teaches_hidden:
                self.hidden.end([state.hidden])
            state.answered += output.tokens

    def fork(self, states: Sequence[PhasedState]) -> list[PhasedState]:
        return [self._fork(state) for state in states]

    def end(self, states: Sequence[PhasedState]) -> None:
        for state in states:
            if state.hidden_refusal is None and state.answered and self._teaches_hidden:
                self.hidden.commit([state.hidden], [VerifyOutput((), state.answered)])
            if state.hides or (state.hidden_refusal is None and self._teaches_hidden):
                self.hidden.end([state.hidden])
        self.later.end([state.later for state in states if state.later_refusal is None])

    def _begin(self, request: Request) -> PhasedState:
        try:
            hidden = self.hidden.begin([request])[0]
        except CrossdraftError as error:
            try:
                return PhasedState(later=self.later.begin([request])[0], hidden_refusal=str(error))
            except CrossdraftError:
                raise error from None
        try:
            return PhasedState(hidden, self.later.begin([request])[0])
        except CrossdraftError as error:
            return PhasedState(hidden, later_refusal=str(error))

    def _ask(self, states: Sequence[PhasedState], budgets: Sequence[Budget]) -> Proposal:
        """Draft with the drafter whose turn it is; nothing where it has to wait for the target, or has refused."""
        begun = propose_grouped(
            [self._turn(state) for state in states],
            [state.hidden if state.hides else state.later for state in states],
            budgets,
        )

        def wait() -> list[Draft]:
            return [
                draft if state.hides or state.later_refusal is None else replace(NOTHING, refusal=state.later_refusal)
                for draft, state in zip(begun(), states, strict=True)
            ]

        return wait

    def _turn(self, state: PhasedState) -> Drafter[Any] | None:
        if state.hides:
            return self.hidden
        able = state.later_refusal is None and (state.answered or self.later.needs.may_hide)
        return self.later if able else None

    def _refuse(self, state: PhasedState, why: str | None) -> None:
        """Note the hidden drafter's refusal of a request that it began, and end its state."""
        state.hidden_refusal = why
        self.hidden.end([state.hidden])

    def _fork(self, state: PhasedState) -> PhasedState:
        # Once its turn is over, the hidden drafter's state does not change any more.
        hidden = self.hidden.fork([state.hidden])[0] if state.hides else state.hidden
        later = self.later.fork([state.later])[0] if state.later_refusal is None else None
        return replace(state, hidden=hidden, later=later)


def _noted(draft: Draft, state: PhasedState) -> Draft:
    """The draft with a note of the hidden drafter's refusal, if there was one."""
    if state.hidden_refusal is None:
        return draft
    return replace(draft, notes=(*draft.notes, GAVE_UP.format(state.hidden_refusal.rstrip("."))))
