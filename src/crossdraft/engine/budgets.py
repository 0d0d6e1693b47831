"""How much to draft for each request: what the cost model's figures mean for one draft, and what a draft tells it."""

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar

from crossdraft.engine.cost import CostModel
from crossdraft.engine.drafter import Budget, Draft
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import READING, RequestState
from crossdraft.engine.tree import ROOT, DraftTree

log = logging.getLogger(__name__)

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Harmless(Generic[Result]):
    """Of a method: a mistake costs its advice, never an answer. It is logged, counted, and answered by `otherwise`."""

    def __init__(self, otherwise: Callable[[], Result]) -> None:
        self.otherwise = otherwise

    def __call__(
        self, method: Callable[Concatenate["Budgets", Given], Result]
    ) -> Callable[Concatenate["Budgets", Given], Result]:
        """The method made harmless."""

        @wraps(method)
        def safe(budgets: "Budgets", *given: Given.args, **named: Given.kwargs) -> Result:
            try:
                return method(budgets, *given, **named)
            except Exception:
                log.exception("A policy failed.")
                for live in given:
                    if isinstance(live, RequestState):
                        live.stats.policy_errors += 1
                return self.otherwise()

        return safe


class Budgets:
    """Budgets of rounds and of hidden drafts.

    Args:
        cost: what measured times and acceptances favour; it is fed here.
        nodes: most nodes drafted per round.
        hidden_nodes: most nodes drafted for the ride-along.
        probes: most probe rows that a draft brings along.
        adaptive: draft what pays; else as much as there may be.
    """

    def __init__(self, cost: CostModel, nodes: int, hidden_nodes: int, probes: int, *, adaptive: bool) -> None:
        self.cost = cost
        self.nodes = nodes
        self.hidden_nodes = hidden_nodes
        self.probes = probes
        self.adaptive = adaptive
        self._knows_reach = False

    @Harmless(int)
    def hidden(self, request: Request) -> int:
        """Most nodes of a draft for the ride-along."""
        nodes = min(self.hidden_nodes, request.token_limit - 1)
        return self.cost.hidden_nodes(nodes) if self.adaptive else nodes

    @Harmless(lambda: True)
    def reads(self, request: Request) -> bool:
        """Whether the drafter should take part in an answer at all."""
        return not self.adaptive or self.cost.reading_pays(request.token_limit)

    @Harmless(lambda: Budget(0))
    def round(self, live: RequestState, rows: int) -> Budget:
        """For a round that so many rows share. Never past the answer's end: the bonus token needs a place too."""
        left = live.request.token_limit - len(live.tokens) - 1
        limit = max(0, min(self.nodes, left))
        if not self.adaptive:
            return Budget(limit)
        cost = self.cost
        plan = cost.plan(cost.levels(limit), live.frailty, rows, self.probes)
        cost.token_s = plan.token_s
        depth = cost.ask(plan.depth, cost.levels(limit), rows)
        if not depth:
            live.frailty.forget()
        wait_s = cost.longest_wait(depth or cost.levels(limit), live.frailty, rows)
        # A drafter that knows how sure it is stops by itself.
        if plan.depth and depth and self._knows_reach and live.request.sampling.greedy:
            return Budget(limit, cost.node_gain(live.frailty, plan.token_s, rows), wait_s=wait_s)
        return Budget(cost.nodes(depth, limit), wait_s=wait_s)

    @Harmless(DraftTree.empty)
    def trim(self, draft: Draft, live: RequestState, rows: int = 1, *, hidden: bool = False) -> DraftTree:
        """What of a tree is worth its place in the pass; where the drafter knows no chances, nothing is judged."""
        tree, kept = draft.tree, draft.path_probs
        if len(tree):
            self._knows_reach = bool(draft.path_probs)
        if self.adaptive and draft.path_probs:
            nodes = self.cost.worthwhile(tree.parents, draft.path_probs, live.frailty, rows, hidden=hidden)
            tree, kept = tree.keep(nodes), tuple(draft.path_probs[node] for node in nodes)
        elif self.adaptive and hidden and tree.is_chain:
            tree = tree.first(self.cost.verify_depth(len(tree)))
        live.path_probs = kept
        return tree

    # -- what drafts tell ----------------------------------------------------------------------------------------

    @Harmless(lambda: None)
    def saw_draft(self, draft: Draft, nodes: int, waited: float) -> None:
        """A draft of at most so many nodes came after so many seconds."""
        if draft.refusal is None:
            self.cost.saw_draft(self.cost.levels(nodes), draft.tree.depth, len(draft.tree), waited)

    @Harmless(lambda: None)
    def saw_verdict(self, live: RequestState, tree: DraftTree, path: Sequence[int], *, hidden: bool) -> None:
        """Of the tree this path was kept. A level is judged if a node above it was kept, and it has a child there."""
        judged = [(node, tree.children(node)) for node in (ROOT, *path)]
        judged = [(node, children) for node, children in judged if children]
        if not judged:
            return
        chances: list[float] = []
        if len(live.path_probs) >= len(tree):
            for node, children in judged:
                above = 1.0 if node == ROOT else live.path_probs[node]
                chances.append(sum(live.path_probs[child] for child in children) / above if above else 0.0)
        self.cost.saw_verdict(live.frailty, len(judged), len(path), chances, hidden=hidden)

    @Harmless(lambda: None)
    def saw_answer(self, live: RequestState) -> None:
        """An answer is whole: its length, and what the target waited for its drafter to read."""
        self.cost.length.add(len(live.tokens))
        if live.drafter is not None:
            self.cost.read_waits.append(live.read_wait)

    @Harmless(lambda: None)
    def saw_reading(self, live: RequestState, until: float) -> None:
        """The prefill ended at `until`: what reading takes, alone or side by side."""
        cost, drafting = (self.cost, {span.name: span for span in live.timeline.spans if span.lane == "drafter"})
        draft = drafting.get("hidden draft")
        if live.stats.hidden_inside_s == 0:
            cost.read.add(sum(live.stats.stages_s[stage] for stage in READING))
            if read := drafting.get("read"):
                cost.draft_read.add(read.seconds)
            if draft is not None and draft.tokens:
                cost.step.add(draft.seconds / draft.tokens)
        elif cost.read.value and cost.step.value and draft is not None:
            alone = cost.read.value + (cost.draft_read.value or 0.0) + draft.tokens * cost.step.value
            cost.beside.add((until - live.started) / alone)
