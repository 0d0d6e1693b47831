"""One proposal by several drafters, each of which drafts for some of the requests."""

from collections.abc import Sequence
from typing import Any

from crossdraft.engine.checks import drafts_of
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Proposal, propose_async


def propose_grouped(
    drafters: Sequence[Drafter[Any] | None], states: Sequence[Any], budgets: Sequence[Budget]
) -> Proposal:
    """Ask each drafter once for all of its requests: it may batch them, and is waited for once.

    Args:
        drafters: [n] the drafter of each request; `None` = nothing is drafted.
        states: [n] state of each request in its drafter.
        budgets: [n] budget of each request.

    Returns:
        A function that waits for the drafts [n].
    """
    groups: dict[int, tuple[Drafter[Any], list[int]]] = {}
    for i, drafter in enumerate(drafters):
        if drafter is not None:
            groups.setdefault(id(drafter), (drafter, []))[1].append(i)
    asked = [
        (group, propose_async(drafter, [states[i] for i in group], [budgets[i] for i in group]))
        for drafter, group in groups.values()
    ]

    def wait() -> list[Draft]:
        made = [NOTHING] * len(states)
        for group, proposal in asked:
            for i, draft in zip(group, drafts_of(proposal(), len(group)), strict=True):
                made[i] = draft
        return made

    return wait
