"""PendingDrafts: drafts that were asked for, of requests that are verified later.

A drafter elsewhere drafts for one half of the requests while the target verifies the other half (MineDraft 2026,
arXiv 2603.18016).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crossdraft.engine.drafter import Budget, Draft, Proposal
from crossdraft.engine.guarded import GuardedDrafter
from crossdraft.engine.policy import SpeculationPolicy
from crossdraft.engine.request_state import RequestState


@dataclass(eq=False)
class _Proposal:
    """Drafts of several requests, which are waited for together."""

    wait: Proposal
    requests: list[int]
    rows: int
    drafts: dict[int, Draft] | None = None
    waited_s: float = 0.0


class PendingDrafts:
    """See the module's text.

    Args:
        drafter: who is asked.
        policy: says how much to ask for.
    """

    def __init__(self, drafter: GuardedDrafter, policy: SpeculationPolicy) -> None:
        self._drafter, self._policy = drafter, policy
        self._asked: dict[int, tuple[_Proposal | None, Budget]] = {}

    def ask(self, states: Sequence[RequestState]) -> None:
        """Have drafts made for those for whom none is on its way, to be verified together, as far as it pays."""
        asked: list[tuple[RequestState, Budget]] = []
        plain = self._policy.goes_plain(len(states))
        if states:
            self._policy.began_rounds(len(states))
        for state in states:
            if state.request_id in self._asked or plain or not self._drafter.drafts_for(state):
                continue
            plan = self._policy.plan_round(state, len(states))
            self._policy.began_round(state, plan)
            self._asked[state.request_id] = None, plan.budget
            if plan.budget.nodes > 0:
                asked.append((state, plan.budget))
        if not asked:
            return
        wait = self._drafter.ask([state for state, _ in asked], [budget for _, budget in asked])
        made = _Proposal(wait, [state.request_id for state, _ in asked], len(states))
        for state, budget in asked:
            self._asked[state.request_id] = made, budget

    def take(self, state: RequestState) -> tuple[Draft, int] | None:
        """A request's draft and how many nodes it may have; `None` where none was asked for."""
        made, budget = self._asked.pop(state.request_id, (None, Budget(0)))
        if made is None:
            return None
        if made.drafts is None:
            made.drafts = dict(zip(made.requests, made.wait(), strict=True))
            made.waited_s = self._drafter.waited_s
        draft = made.drafts.pop(state.request_id)
        self._policy.saw_draft(draft, budget.nodes, made.waited_s, made.rows)
        return draft, budget.nodes

    def drop(self, state: RequestState) -> None:
        """A request wants none any more."""
        self._asked.pop(state.request_id, None)
