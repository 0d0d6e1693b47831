"""The drafter `union`: the trees of several drafters as one, under one budget.

Greedy answers: the drafters' opinions are mixed, and the likeliest nodes kept; see `mixture`. Sampled answers: what is
drawn must not be dropped because of its value, so the budget is divided beforehand; each drafter's tokens keep their
own law, and acceptance stays exact (see `DraftTree.union`).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossdraft.drafters.alternatives import alternatives_of, tree_from_topk
from crossdraft.drafters.combine.tree_merger import TreeMerger
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.streams import apart
from crossdraft.engine.together import own_part, with_probes
from crossdraft.errors import CrossdraftError


@dataclass(eq=False)
class Joint:
    """One answer: the drafters' own states, and what each proposed last."""

    states: list[Any]
    greedy: bool
    drafts: list[Draft] = field(default_factory=list)
    on_trial: bool = False  # a fork: what happens to it teaches nothing


class UnionDrafter:
    """Several drafters at once.

    Args:
        drafters: the first one's main chain is shown as provisional text.
        ends: ids that end an answer.

    Raises:
        CrossdraftError: fewer than two drafters.
    """

    def __init__(self, drafters: Sequence[Drafter[Any]], ends: Collection[int] = ()) -> None:
        if len(drafters) < 2:
            raise CrossdraftError("A union needs two drafters or more, such as union:event,memory.")
        self.drafters = list(drafters)
        self.ends = ends
        self.blend = TreeMerger(len(drafters))
        self.needs = all_needs([drafter.needs for drafter in drafters])

    def begin(self, requests: Sequence[Request]) -> list[Joint]:
        columns = [drafter.begin(apart(requests, place)) for place, drafter in enumerate(self.drafters)]
        return [
            Joint(list(states), request.sampling.greedy) for request, *states in zip(requests, *columns, strict=True)
        ]

    def propose(self, states: Sequence[Joint], budgets: Sequence[Budget]) -> list[Draft]:
        for state in states:
            state.drafts = []
        for place, drafter in enumerate(self.drafters):
            own = [
                self.blend.share(budget, place, greedy=state.greedy)
                for state, budget in zip(states, budgets, strict=True)
            ]
            drafts = drafter.propose([state.states[place] for state in states], own)
            for state, budget, draft in zip(states, budgets, drafts, strict=True):
                state.drafts.append(widened(draft, budget.nodes, self.ends) if state.greedy else draft)
        return [self._join(state, budget.nodes) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[Joint], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            if state.greedy and state.drafts and not state.on_trial:
                self.blend.learn(state.drafts, output.tokens)
        for place, drafter in enumerate(self.drafters):
            own = [self._verdict(state, place, v) for state, v in zip(states, outputs, strict=True)]
            drafter.commit([state.states[place] for state in states], own)
        for state in states:
            state.drafts = []  # they are judged

    def fork(self, states: Sequence[Joint]) -> list[Joint]:
        columns = [
            drafter.fork([state.states[place] for state in states]) for place, drafter in enumerate(self.drafters)
        ]
        return [
            replace(state, states=list(own), drafts=[*state.drafts], on_trial=True)
            for state, *own in zip(states, *columns, strict=True)
        ]

    def end(self, states: Sequence[Joint]) -> None:
        for place, drafter in enumerate(self.drafters):
            drafter.end([state.states[place] for state in states])

    def _join(self, state: Joint, nodes: int) -> Draft:
        return with_probes(self.blend.join(state.drafts, nodes, greedy=state.greedy), state.drafts)

    def _verdict(self, state: Joint, place: int, output: VerifyOutput) -> VerifyOutput:
        if not state.drafts:  # the prompt's features, before anything was proposed
            return output
        return own_part(state.drafts, place, output)


def widened(draft: Draft, nodes: int, ends: Collection[int] = ()) -> Draft:
    """A chain with what its drafter might have said instead: second guesses are for the union to weigh up."""
    if not draft.tree.is_chain or not draft.outcomes or not draft.path_probs:
        return draft
    wide = tree_from_topk(alternatives_of(draft), nodes, ends=ends)
    return replace(draft, tree=wide.tree, path_probs=wide.path_probs)


def all_needs(needs: Sequence[Needs]) -> Needs:
    """Whatever any of them needs."""
    return Needs(
        hidden_layers=_all_layers(need.hidden_layers for need in needs),
        visual_layers=_all_layers(need.visual_layers for need in needs),
        logits=any(need.logits for need in needs),
        video=any(need.video for need in needs),
        visual=any(need.visual for need in needs),
        probes=max((need.probes for need in needs), default=0),
        remembers=any(need.remembers for need in needs),
    )


def _all_layers(layers: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({layer for some in layers for layer in some}))
