"""The drafters `fallback` and `phased`: one drafter, and another one that takes over from it.

`fallback`: the other one drafts for the requests that the first one refuses. A drafter refuses what it cannot read: an
event drafter a request without a recording, or with a damaged one.

`phased`: the first one drafts while the target reads, the other one afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.drafters.combine.grouped import propose_grouped
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Needs, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError

GAVE_UP = "The drafter of the prefill gave up ({}); the other one drafted."


@dataclass(eq=False)
class HandoverState:
    """One answer: the states of the first drafter and of the other, which takes over.

    Args:
        first, other: the two drafters' states.
        drafts: true while it is the first drafter's turn.
        holds, follows: true until the first drafter's state, and the other's, is ended.
        refusal, other_refusal: reason for which that drafter drafts nothing.
        answered: tokens of the answer.
    """

    first: Any = None
    other: Any = None
    drafts: bool = True
    holds: bool = True
    follows: bool = True
    refusal: str | None = None
    other_refusal: str | None = None
    answered: tuple[int, ...] = ()


class HandoverDrafter:
    """Drafts with `first`, or with `other` once the first one's turn is over.

    Both follow an answer from its beginning, so that the other one is ready when its turn comes: a refusal may come
    late, from another process. A refusal concerns the refuser's turn only. If the first drafter refuses a request, the
    other one drafts as if it were alone, at once if it needs nothing of the target.

    Args:
        first: the drafter that is asked first.
        other: the drafter that takes over.
        phased: the first one's turn ends with the first commit, and a note names its refusal. If it learns from
            answers, the whole answer is committed to it at the end. Otherwise its turn lasts as long as the answer, and
            the other one is ended once the first one has drafted, unless it learns from answers.
    """

    def __init__(self, first: Drafter[Any], other: Drafter[Any], *, phased: bool) -> None:
        self.first, self.other, self.phased = first, other, phased
        self.needs = Needs.of_all([first.needs, other.needs])
        # A drafter that needs the target's features cannot learn from an answer without them.
        self._teaches_first = phased and first.needs.nothing and first.needs.learns

    def begin(self, requests: Sequence[Request]) -> list[HandoverState]:
        return [self._begin(request) for request in requests]

    def propose(self, states: Sequence[HandoverState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[HandoverState], budgets: Sequence[Budget]) -> Proposal:
        """See `AsyncDrafter`."""
        begun = self._ask(states, budgets)

        def wait() -> list[Draft]:
            drafts = begun()
            refused = [i for i, draft in enumerate(drafts) if self._refused(states[i], draft)]
            again = self._ask([states[i] for i in refused], [budgets[i] for i in refused])()
            for i, draft in zip(refused, again, strict=True):
                drafts[i] = draft
            return [self._noted(draft, state) for draft, state in zip(drafts, states, strict=True)]

        return wait

    def commit(self, states: Sequence[HandoverState], outputs: Sequence[VerifyOutput]) -> None:
        both = list(zip(states, outputs, strict=True))
        firsts = [(state.first, output) for state, output in both if state.drafts and not self.phased]
        # A drafter that did not draft had an empty tree, of which nothing was accepted.
        others = [
            (state.other, replace(output, path=()) if state.drafts else output)
            for state, output in both
            if state.follows
        ]
        for drafter, committed in ((self.first, firsts), (self.other, others)):
            if committed:
                drafter.commit([state for state, _ in committed], [output for _, output in committed])
        for state, output in both:
            state.answered += output.tokens
            if self.phased:
                state.drafts = False
                if not self._teaches_first:
                    self._end_first(state)

    def fork(self, states: Sequence[HandoverState]) -> list[HandoverState]:
        # Once its turn is over, the first drafter's state does not change any more.
        return [
            replace(
                state,
                first=self.first.fork([state.first])[0] if state.drafts else state.first,
                other=self.other.fork([state.other])[0] if state.follows else None,
            )
            for state in states
        ]

    def end(self, states: Sequence[HandoverState]) -> None:
        for state in states:
            if state.holds and state.answered and self._teaches_first:
                self.first.commit([state.first], [VerifyOutput((), state.answered)])
            self._end_first(state)
            self._end_other(state)

    def _begin(self, request: Request) -> HandoverState:
        """Begin a request with the drafters that do not refuse it.

        Raises:
            CrossdraftError: both refuse it.
        """
        state = HandoverState()
        try:
            state.first = self.first.begin([request])[0]
        except CrossdraftError as error:
            state.drafts, state.holds, state.refusal = False, False, str(error)
        try:
            state.other = self.other.begin([request])[0]
        except CrossdraftError as error:
            state.follows, state.other_refusal = False, str(error)
        if not (state.holds or state.follows):
            raise CrossdraftError(str(state.refusal))
        return state

    def _ask(self, states: Sequence[HandoverState], budgets: Sequence[Budget]) -> Proposal:
        """Draft with the drafter whose turn it is; nothing where it has to wait for the target, or has refused."""
        begun = propose_grouped(
            [self._turn(state) for state in states],
            [state.first if state.drafts else state.other for state in states],
            budgets,
        )

        def wait() -> list[Draft]:
            return [
                draft if state.drafts or state.other_refusal is None else replace(NOTHING, refusal=state.other_refusal)
                for draft, state in zip(begun(), states, strict=True)
            ]

        return wait

    def _turn(self, state: HandoverState) -> Drafter[Any] | None:
        if state.drafts:
            return self.first
        return self.other if state.follows and (state.answered or self.other.needs.may_hide) else None

    def _refused(self, state: HandoverState, draft: Draft) -> bool:
        """True if the other drafter is to be asked now, in place of the first; not if it was ended already."""
        if not state.drafts or not (state.follows or state.other_refusal):
            return False
        if draft.refusal is not None:
            state.drafts, state.refusal = False, draft.refusal
            self._end_first(state)
            return True
        if len(draft.tree) and not self.phased and not self.other.needs.learns:
            self._end_other(state)
        return False

    def _noted(self, draft: Draft, state: HandoverState) -> Draft:
        """The draft with a note of the first drafter's refusal, if `phased` has one."""
        if not self.phased or state.refusal is None:
            return draft
        return replace(draft, notes=(*draft.notes, GAVE_UP.format(state.refusal.rstrip("."))))

    def _end_first(self, state: HandoverState) -> None:
        if state.holds:
            state.holds = False
            self.first.end([state.first])

    def _end_other(self, state: HandoverState) -> None:
        if state.follows:
            state.follows = False
            self.other.end([state.other])
