"""SpeculationPolicy: how much is drafted for each request, by what the cost model (`engine.cost_model`) measured."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeVar

from crossdraft.engine.cost_model import CostModel, DraftDepth, is_sure
from crossdraft.engine.drafter import NOTHING, Budget, Draft
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.tree import ROOT

log = logging.getLogger(__name__)

HIDDEN_NODES = 64  # longest hidden draft
ROUND_NODES = 32  # longest draft of a later round
FIRST_NODES = 8  # longest hidden draft of a drafter in this process while it is not known how long it takes

P = ParamSpec("P")
R = TypeVar("R")


def harmless(otherwise: R) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a policy's method: an error is logged and counted, `otherwise` is returned, and no answer fails."""

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
    """Plan of a request: whether the drafter reads it, its hidden mode, and the most nodes of its hidden draft.

    Args:
        least: least path probability, by the drafter's own figures, of these nodes.
        why: why the drafter does not read it, in a sentence.
    """

    reads: bool = True
    mode: str = "off"
    nodes: int = 0
    least: float = 0.0
    why: str | None = None


@dataclass(frozen=True)
class RoundPlan:
    """Plan of one request's round: its draft's budget, and the depth chosen by the cost model if it had a choice."""

    budget: Budget
    chosen: DraftDepth | None = None


@dataclass
class SpeculationPolicy:
    """Policy of how much to draft for each request, by the cost model's measurements; fed by the decode loop.

    Args:
        cost: the cost model, with measured times and acceptances.
        nodes: most nodes drafted per round.
        hidden_nodes: most nodes drafted for the ride-along.
        adaptive: draft as much as pays; otherwise as much as is allowed.
        unasked: drafts come without being asked for; see `Needs.unasked`.

    `gives_probs`: whether the last draft of a greedy answer came with the drafter's own probabilities.
    """

    cost: CostModel
    nodes: int
    hidden_nodes: int
    adaptive: bool = field(kw_only=True)
    unasked: bool = field(default=False, kw_only=True)
    gives_probs: bool = field(default=False, init=False)

    @harmless(RequestPlan())
    def plan_request(self, request: Request, hidden: str, rows: int = 1, *, learns: bool) -> RequestPlan:
        """Plan the drafter's part in a request before its rounds.

        Args:
            request: the request.
            hidden: hidden mode of the drafter; `auto` = before the prefill, where that pays.
            rows: requests that are answered at once.
            learns: the drafter reads every request, to learn from it.
        """
        cost, nodes = self.cost, min(self.hidden_nodes, request.token_limit - 1)
        if self.adaptive:
            unknown = hidden == "auto" and cost.step.value is None
            nodes = min(cost.hidden_nodes(nodes), FIRST_NODES if unknown else nodes)
        mode = ("before" if cost.hiding_pays(nodes) else "off") if hidden == "auto" else hidden
        greedy = self.adaptive and request.sampling.greedy  # drawn tokens must not be dropped because of their value
        plan = RequestPlan(True, mode, nodes, cost.hidden_gain if greedy and mode == "before" else 0.0)
        if learns or not self.adaptive:
            return plan
        if not cost.reading_pays(request.token_limit, rows):
            return RequestPlan(False, why=cost.why_unread(request.token_limit, rows))
        return plan

    @harmless(RoundPlan(Budget(0)))
    def plan_round(self, state: RequestState, rows: int, free: Sequence[Draft] = ()) -> RoundPlan:
        """Plan a request's draft for a round of `rows` rows, short enough for the bonus to fit into the answer.

        A drafter that has to be waited for is not asked where one of the `free` drafts is expected to save as much.
        """
        left = state.request.token_limit - len(state.tokens) - 1
        limit = max(0, min(self.nodes, left))
        if not self.adaptive:
            return RoundPlan(Budget(limit))
        cost, levels = self.cost, self.cost.levels(limit)
        plan = cost.plan(levels, state.difficulty, rows)
        if any(cost.beats(len(one.tree), sum(one.path_probs), plan, rows) for one in free):
            return RoundPlan(Budget(0))
        wait_s = cost.longest_wait(plan.depth or levels, state.difficulty, rows)
        sure = self.gives_probs and state.request.sampling.greedy  # such a drafter stops at unlikely nodes itself
        if self.unasked:  # a late draft is used, too, as far as the text agrees with it: a pass is the longest wait
            wait_s = cost.costs(rows).verify(1) or None
        if self.unasked and sure:  # the draft is taken as far as it is there, and trimmed
            budget = Budget(limit, wait_s=wait_s if plan.depth else 0.0)
        elif plan.depth and sure:
            wait_s = limit * cost.costs(rows).verify(1) or None  # saved if the whole draft is accepted
            budget = Budget(limit, cost.node_gain(state.stated, plan.token_s, rows), wait_s=wait_s)
        else:
            budget = Budget(cost.nodes(plan.depth, limit), wait_s=wait_s)
        return RoundPlan(budget, plan if levels else None)

    @harmless(NOTHING)
    def trim(self, draft: Draft, state: RequestState, nodes: int, rows: int = 1, *, hidden: bool = False) -> Draft:
        """Keep the nodes of a draft that save most time, at most `nodes`; all of them while nothing is measured."""
        cost, tree = self.cost, draft.tree
        if self.adaptive and draft.path_probs:
            probs = draft.path_probs[: len(tree)]
            draft = draft.keep(cost.worthwhile(tree.parents, probs, state.stated, rows, hidden=hidden))
        elif self.adaptive and hidden and tree.is_chain:
            draft = draft.first(cost.verify_depth(len(tree)))
        return draft.first(nodes)

    def most_nodes(self, state: RequestState) -> int:
        """Most nodes of a request's next draft, whoever makes it."""
        return self.nodes if state.tokens else max(self.nodes, self.hidden_nodes)

    @harmless(tuple[Draft, ...]())
    def free_drafts(self, state: RequestState, rows: int = 1) -> tuple[Draft, ...]:
        """A request's drafts that cost no drafter; of each the nodes that save most time, by its probabilities."""
        drafts = state.free_drafts(self.most_nodes(state))
        if self.adaptive:
            kept = [self.cost.worthwhile(one.tree.parents, one.path_probs, rows=rows) for one in drafts]
            drafts = [draft.keep(nodes) for draft, nodes in zip(drafts, kept, strict=True) if nodes]
        return tuple(drafts)

    # -- what is observed ----------------------------------------------------------------------------------------

    @harmless(None)
    def began_request(self, plan: RequestPlan) -> None:
        """Record that a request with this plan was taken up."""
        self.cost.began_request(plan.mode, reads=plan.reads)

    @harmless(None)
    def began_round(self, state: RequestState, plan: RoundPlan, rows: int = 1) -> None:
        """Record that a request's round with this plan began, which `rows` rows share."""
        if plan.chosen is None:
            return
        self.cost.token_s, self.cost.planned_rows = plan.chosen.token_s, rows
        self.cost.began_round(plan.chosen.depth, rows)
        if not plan.chosen.depth:
            state.stats.rounds_off += 1
            state.plain_plan = plan.chosen
            state.difficulty.forget()
            state.stated.forget()

    @harmless(None)
    def saw_draft(self, draft: Draft, kept: Draft, nodes: int, waited_s: float, rows: int = 1) -> None:
        """Record a draft of at most `nodes` nodes that came after `waited_s` seconds a request; `kept` is verified."""
        if draft.refusal is None:
            tree, drafted = kept.tree, draft.tree.depth
            self.cost.saw_draft(self.cost.levels(nodes), tree.depth, len(tree), waited_s, rows, drafted=drafted)

    @harmless(None)
    def saw_hidden_draft(self, draft: Draft, waited_s: float) -> None:
        """Record how long the target waited for the hidden draft."""
        if draft.refusal is None:
            self.cost.wait_hidden.add(len(draft.tree), waited_s)

    @harmless(None)
    def saw_verify(self, rows: int, tokens: float, seconds: float) -> None:
        """Record a pass over `tokens` tokens a row, on average, that took `seconds`."""
        self.cost.saw_pass(rows, tokens, seconds / rows)

    @harmless(None)
    def saw_acceptance(self, state: RequestState, draft: Draft, path: Sequence[int], *, hidden: bool) -> None:
        """Record a tree's accepted path; levels count as verified down to the children of its last node."""
        tree = draft.tree
        if len(tree) and state.request.sampling.greedy:
            self.gives_probs = bool(draft.path_probs)
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
        """Record a finished answer: its length, and the wait for its drafter's reading (`None`: it had no drafter).

        `drafting_s`: the drafter's own time for it before its rounds.
        """
        self.cost.length.add(tokens)
        if read_wait_s is not None:
            self.cost.read_waits.append(read_wait_s)
            self.cost.drafting.add(drafting_s)

    @harmless(None)
    def saw_prefill(self, tokens: int, seconds: float, step_s: float | None) -> None:
        """Record that the pass over a prompt's last piece and its tree, `tokens` tokens, took `seconds`.

        `step_s`: seconds per token of the hidden draft that was made in this process; `None` if there was none.
        """
        self.cost.ride.add(tokens, seconds)
        if step_s is not None:
            self.cost.step.add(step_s)
