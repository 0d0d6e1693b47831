"""SpeculationPolicy: how much is drafted for each request, by what the cost model (`engine.cost_model`) measured."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import ParamSpec, TypeVar

from crossdraft.engine.cost_model import CostModel, Plan, is_sure
from crossdraft.engine.drafter import NOTHING, Budget, Draft
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.runner.runner import HiddenWork
from crossdraft.engine.tree import ROOT

log = logging.getLogger(__name__)

HIDDEN_NODES = 64  # longest hidden draft
ROUND_NODES = 32  # longest draft of a later round
DECIDE_EVERY = 8  # rounds after which it is decided anew whether drafts are prepared

P = ParamSpec("P")
R = TypeVar("R")


def harmless(otherwise: R) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a policy's method: an error is logged and counted, and `otherwise` returned; no answer fails by it."""

    def wrap(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def safe(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except Exception:
                log.exception("A policy failed.")
                for state in args:
                    if isinstance(state, RequestState):
                        state.stats.policy_errors += 1
                return otherwise

        return safe

    return wrap


@dataclass(frozen=True)
class RequestPlan:
    """A request: whether the drafter reads it, when it drafts hidden, and at most how many nodes.

    Args:
        why: a sentence, where the drafter does not read it.
    """

    reads: bool = True
    mode: str = "off"
    nodes: int = 0
    why: str | None = None


@dataclass(frozen=True)
class RoundPlan:
    """A round of one request: the budget of its draft; `plan`, where there was a choice, is for `began_round`."""

    budget: Budget
    plan: Plan | None = None


@dataclass
class SpeculationPolicy:
    """Policy of how much to draft for each request, by the cost model's measurements; fed by the decode loop.

    Args:
        cost: what measured times and acceptances favour.
        nodes: most nodes drafted per round.
        hidden_nodes: most nodes drafted for the ride-along.
        probes: most probe rows that a draft brings along.
        adaptive: draft what pays; else as much as there may be.
        unasked: drafts come of their own accord; see `Needs.unasked`.
        prepares: they may be prepared; see `Needs.prepares`.
    """

    cost: CostModel
    nodes: int
    hidden_nodes: int
    probes: int
    adaptive: bool = field(kw_only=True)
    unasked: bool = field(default=False, kw_only=True)
    prepares: bool = field(default=False, kw_only=True)
    _rounds: int = field(default=0, init=False)  # since it was decided whether drafts are prepared
    _changes: bool = field(default=False, init=False)  # this round's draft came of one way, its pass of the other

    @harmless(RequestPlan())
    def plan_request(self, request: Request, hidden: str, rows: int = 1, *, learns: bool) -> RequestPlan:
        """The drafter's part in an answer before the rounds.

        Args:
            request: what is asked.
            hidden: when its drafter drafts hidden; `auto` = before the prefill, where that pays.
            rows: requests that are answered at once.
            learns: it reads every request, to learn from it.
        """
        cost, nodes = self.cost, min(self.hidden_nodes, request.token_limit - 1)
        if self.adaptive:
            nodes = cost.hidden_nodes(nodes)
        mode = ("before" if cost.hiding_pays(nodes) else "off") if hidden == "auto" else hidden
        if learns or not self.adaptive:
            return RequestPlan(True, mode, nodes)
        if not cost.reading_pays(request.token_limit, rows):
            return RequestPlan(False, why=cost.why_unread(request.token_limit, rows))
        return RequestPlan(True, mode, nodes)

    @harmless(RoundPlan(Budget(0)))
    def plan_round(self, state: RequestState, rows: int) -> RoundPlan:
        """A round that so many rows share. Never past the answer's end: the bonus needs room."""
        left = state.request.token_limit - len(state.tokens) - 1
        limit = max(0, min(self.nodes, left))
        if not self.adaptive:
            return RoundPlan(Budget(limit, ahead=self.prepares))
        cost, levels = self.cost, self.cost.levels(limit)
        plan = cost.plan(levels, state.difficulty, rows, self.probes)
        wait_s = cost.longest_wait(plan.depth or levels, state.difficulty, rows)
        sure = state.gives_probs and state.request.sampling.greedy  # a drafter that knows that stops by itself
        if self.unasked:  # a late draft is used, too, as far as the text agrees with it: a pass is the longest wait
            wait_s = cost.costs(rows).verify(1) or None
        if self.unasked and sure:  # what is there is taken, and trimmed
            budget = Budget(limit, wait_s=wait_s if plan.depth else 0.0)
        elif plan.depth and sure:
            wait_s = limit * cost.costs(rows).verify(1) or None  # what it saves if all of it is accepted
            budget = Budget(limit, cost.node_gain(state.stated, plan.token_s, rows), wait_s=wait_s)
        else:
            budget = Budget(cost.nodes(plan.depth, limit), wait_s=wait_s)
        return RoundPlan(replace(budget, ahead=cost.prepares), plan if levels else None)

    @harmless(NOTHING)
    def trim(self, draft: Draft, state: RequestState, nodes: int, rows: int = 1, *, hidden: bool = False) -> Draft:
        """Keep the nodes of a draft that are worth a row of the pass, at most `nodes`; all while nothing is known."""
        cost, tree = self.cost, draft.tree
        if self.adaptive and draft.path_probs:
            probs = draft.path_probs[: len(tree)]
            draft = draft.keep(cost.worthwhile(tree.parents, probs, state.stated, rows, hidden=hidden))
        elif self.adaptive and hidden and tree.is_chain:
            draft = draft.first(cost.verify_depth(len(tree)))
        return draft.first(nodes)

    @harmless(None)
    def began_rounds(self, rows: int) -> None:
        """Rounds of so many rows begin: are drafts prepared while the target verifies?"""
        cost, self._changes = self.cost, False
        if not (self.prepares and self.adaptive):
            return
        self._rounds += 1
        if self._rounds % DECIDE_EVERY:
            return
        before, cost.prepares = cost.prepares, cost.preparing_pays(cost.levels(self.nodes), rows, self.probes)
        self._changes = before is not cost.prepares
        cost.unprepared = 0 if cost.prepares else cost.unprepared + 1

    # -- what is observed ----------------------------------------------------------------------------------------

    @harmless(None)
    def began_request(self, plan: RequestPlan) -> None:
        """A request of that plan is taken up."""
        self.cost.began_request(plan.mode, reads=plan.reads)

    @harmless(None)
    def began_round(self, state: RequestState, plan: RoundPlan, rows: int = 1) -> None:
        """A round of that plan is under way, which so many rows share."""
        if plan.plan is None:
            return
        self.cost.token_s = plan.plan.token_s
        self.cost.began_round(plan.plan.depth, rows)
        if not plan.plan.depth:
            state.stats.rounds_off += 1
            state.plain_plan = plan.plan
            state.difficulty.forget()
            state.stated.forget()

    @harmless(None)
    def saw_draft(self, draft: Draft, nodes: int, waited_s: float, rows: int = 1) -> None:
        """A draft of at most so many nodes, for a round of so many rows, came after so many seconds by request."""
        if draft.refusal is None and not self._changes:
            asked, probes = self.cost.levels(nodes), draft.probes is not None
            self.cost.saw_draft(asked, draft.tree.depth, len(draft.tree), waited_s, rows, probes=probes)

    @harmless(None)
    def saw_hidden_draft(self, draft: Draft, waited_s: float) -> None:
        """Record how long the target waited for the hidden draft."""
        if draft.refusal is None:
            self.cost.wait_hidden.add(len(draft.tree), waited_s)

    @harmless(None)
    def saw_verify(self, rows: int, tokens: float, seconds: float) -> None:
        """A pass over so many tokens a row, on average, took so long."""
        if not self._changes:
            self.cost.saw_pass(rows, tokens, seconds / rows)

    @harmless(None)
    def saw_acceptance(self, state: RequestState, draft: Draft, path: Sequence[int], *, hidden: bool) -> None:
        """Record a tree's accepted path. A level is verified if a node above was accepted, and has a child there."""
        tree = draft.tree
        verified = [(node, children) for node in (ROOT, *path) if (children := tree.children(node))]
        if not verified:
            return
        probs: list[float] = []
        if draft.path_probs:
            for node, children in verified:
                above = 1.0 if node == ROOT else draft.path_probs[node]
                probs.append(sum(draft.path_probs[child] for child in children) / above if above else 0.0)
        sure = is_sure(tree.parents, draft.path_probs)
        self.cost.saw_acceptance(
            state.difficulty, len(verified), len(path), probs, stated=state.stated, hidden=hidden, sure=sure
        )

    @harmless(None)
    def saw_answer(self, tokens: int, read_wait_s: float | None, drafting_s: float = 0.0) -> None:
        """An answer is whole: its length, and what the target waited for its drafter to read (`None`: it had none).

        `drafting_s`: what the drafter worked for it until its rounds.
        """
        self.cost.length.add(tokens)
        if read_wait_s is not None:
            self.cost.read_waits.append(read_wait_s)
            self.cost.drafting.add(drafting_s)

    @harmless(None)
    def saw_prefill(self, tokens: int, seconds: float, work: HiddenWork | None) -> None:
        """The last piece of a prompt and its tree, so many tokens, took so long.

        `work` is what was drafted for it before the prefill (`None`: elsewhere, or nothing).
        """
        self.cost.ride.add(tokens, seconds)
        if work is not None and work.nodes:
            self.cost.step.add(work.draft_s / work.nodes)
