"""The drafter `fallback`: one drafter, and another one for the requests that it refuses.

A drafter refuses what it cannot read: an event drafter a request without a recording, or with a damaged one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.drafters.combine.grouped import propose_grouped
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError


@dataclass(eq=False)
class FallbackState:
    """One answer: the states of the first drafter and of the other, which replaces it.

    Args:
        first, other: the two drafters' states.
        drafts, follows: true while each is in use: the first has not refused; the other is needed or may yet be.
        begun: true once the target has answered a token.
    """

    first: Any = None
    other: Any = None
    drafts: bool = True
    follows: bool = True
    begun: bool = False


class FallbackDrafter:
    """Drafts with `first`, or with `other` if `first` refuses the request.

    A refusal may come late, from another process. So both follow an answer until the first one has drafted for it; the
    other one is then ended, unless it learns from answers.

    Args:
        first: the drafter that is asked first.
        other: the drafter for requests that `first` refuses.
    """

    def __init__(self, first: Drafter[Any], other: Drafter[Any]) -> None:
        self.first, self.other = first, other
        self.needs = Needs.of_all([first.needs, other.needs])

    def begin(self, requests: Sequence[Request]) -> list[FallbackState]:
        return [self._begin(request) for request in requests]

    def propose(self, states: Sequence[FallbackState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[FallbackState], budgets: Sequence[Budget]) -> Proposal:
        """See `AsyncDrafter`."""
        begun = self._ask(states, budgets)

        def wait() -> list[Draft]:
            drafts = begun()
            refused = [i for i, draft in enumerate(drafts) if self._refused(states[i], draft)]
            again = self._ask([states[i] for i in refused], [budgets[i] for i in refused])()
            for i, draft in zip(refused, again, strict=True):
                drafts[i] = draft
            return drafts

        return wait

    def commit(self, states: Sequence[FallbackState], outputs: Sequence[VerifyOutput]) -> None:
        both = list(zip(states, outputs, strict=True))
        firsts = [(state.first, output) for state, output in both if state.drafts]
        # A drafter that did not draft had an empty tree, of which nothing was accepted.
        others = [
            (state.other, replace(output, path=()) if state.drafts else output)
            for state, output in both
            if state.follows
        ]
        for drafter, committed in ((self.first, firsts), (self.other, others)):
            if committed:
                drafter.commit([state for state, _ in committed], [output for _, output in committed])
        for state in states:
            state.begun = True

    def fork(self, states: Sequence[FallbackState]) -> list[FallbackState]:
        return [
            replace(
                state,
                first=self.first.fork([state.first])[0] if state.drafts else None,
                other=self.other.fork([state.other])[0] if state.follows else None,
            )
            for state in states
        ]

    def end(self, states: Sequence[FallbackState]) -> None:
        for state in states:
            self._end_first(state)
            self._end_other(state)

    def _begin(self, request: Request) -> FallbackState:
        try:
            first = self.first.begin([request])[0]
        except CrossdraftError:
            return FallbackState(other=self.other.begin([request])[0], drafts=False)
        try:
            return FallbackState(first, self.other.begin([request])[0])
        except CrossdraftError:
            return FallbackState(first, follows=False)

    def _ask(self, states: Sequence[FallbackState], budgets: Sequence[Budget]) -> Proposal:
        """Ask the drafter in charge of each request; nothing is drafted where it has to wait for the target."""
        drafters = [
            self.first if state.drafts else self.other if state.begun or self.other.needs.may_hide else None
            for state in states
        ]
        return propose_grouped(drafters, [state.first if state.drafts else state.other for state in states], budgets)

    def _refused(self, state: FallbackState, draft: Draft) -> bool:
        """True if the other drafter is to be asked now; once the first one has drafted, the other one is ended."""
        if not state.drafts or not state.follows:
            return False
        if draft.refusal is not None:
            self._end_first(state)
            return True
        if len(draft.tree) and not self.other.needs.learns:
            self._end_other(state)
        return False

    def _end_first(self, state: FallbackState) -> None:
        if state.drafts:
            state.drafts = False
            self.first.end([state.first])

    def _end_other(self, state: FallbackState) -> None:
        if state.follows:
            state.follows = False
            self.other.end([state.other])
