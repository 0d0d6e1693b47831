"""The drafters `cascade` (cascade speculative drafting: Chen et al. 2023) and `pyramid` (PyramidSD 2025).

Both are two-level cascades. The inner (cheap) drafter drafts a few tokens; the outer (better) one's model reads them in
one pass, keeps those that it accepts, and adds one of its own; the inner one goes on after that. So the outer one
drafts in fewer passes. `cascade` and `pyramid` differ in what the outer drafter accepts. Its choice decides only which
draft the target sees: the target verifies that draft by its own rule, and with an exact rule the answer is its own.

The inner drafter's own state follows the committed text. Text that is not committed yet is given to a fork of the
state: if the text goes another way, the fork is dropped and a new one made. So any drafter can be the inner one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.drafters.alternatives import TokenAlternatives
from crossdraft.drafters.base import PerRequestDrafter, show
from crossdraft.drafters.combine import CascadeSettings, PyramidSettings
from crossdraft.drafters.combine.tree_merger import default_probs
from crossdraft.drafters.independent import IndependentDrafter, IndependentState
from crossdraft.engine.accept import as_wide, divergence
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import warp
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

Accepts = Callable[[Tensor, int, Tensor], bool]
"""(p, token, q): whether the outer drafter, of distribution p [V], accepts a token that was drawn from q [V]."""


@dataclass(eq=False)
class InnerState:
    """A state of the inner drafter, and the part of the answer that was committed to this state."""

    state: Any
    text: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TwoLevelState:
    """One answer: the states of the outer and the inner drafter, and the inner state's fork after uncommitted text."""

    outer: IndependentState
    inner: InnerState
    trial: InnerState | None = None


class TwoLevelDrafter(PerRequestDrafter[TwoLevelState]):
    """Drafts a chain that `inner` drafts and `outer` verifies.

    Args:
        outer: the better drafter, of the target's own vocabulary.
        inner: the cheaper drafter; only the main path of its trees is used.
        accepts: test of tokens other than the token that `outer` would take, which is always accepted in a greedy
            answer. When sampling the test must not depend on a token that was drawn: see `PyramidDrafter`.
        ahead: most tokens that `inner` drafts between two passes of `outer`.

    Raises:
        CrossdraftError: `outer` is not a model that can verify, or ends its drafts early.
    """

    def __init__(
        self, outer: Drafter[Any], inner: Drafter[Any], accepts: Accepts, ahead: int = CascadeSettings.ahead
    ) -> None:
        if not isinstance(outer, IndependentDrafter):
            raise CrossdraftError(
                "The first drafter of a cascade or pyramid must be a model of the target's own vocabulary, such as "
                "event, blind or view."
            )
        if outer.stop is not None:
            raise CrossdraftError(
                "The first drafter of a cascade or pyramid writes what a cheaper one drafts, and ends no draft early; "
                "leave out its adaedl."
            )
        self.outer = outer
        self.inner = inner
        self.accepts = accepts
        self.ahead = ahead
        # Only the outer drafter's needs of the target count; the inner drafter is told tokens alone.
        self.needs = Needs(
            hidden_layers=outer.needs.hidden_layers,
            visual_layers=outer.needs.visual_layers,
            video=outer.needs.video or inner.needs.video,
            visual=outer.needs.visual or inner.needs.visual,
            prompt=outer.needs.prompt or inner.needs.prompt,
            learns=outer.needs.learns or inner.needs.learns,
        )

    def end(self, states: Sequence[TwoLevelState]) -> None:
        for state in states:
            self._commit_inner(state.inner, state.outer.committed)  # it must learn from what the target said
        self.inner.end([state.inner.state for state in states])
        self.outer.end([state.outer for state in states])

    def _begin(self, request: Request) -> TwoLevelState:
        (outer,), (inner,) = self.outer.begin([request]), self.inner.begin([request])
        return TwoLevelState(outer, InnerState(inner))

    def _propose(self, state: TwoLevelState, budget: Budget) -> Draft:
        """Draft on until the budget, the end of the answer, or the stop signal."""
        outer = state.outer
        while len(outer.drafted) < budget.nodes and outer.path_prob >= budget.min_confidence and not budget.stopped:
            if self.outer.ended(outer) or self.outer.room(outer) == 0:
                break
            before = len(outer.drafted)
            self._write(state, budget)
            show(outer.pending[before:], budget)
        # All tokens are drafted; this call only makes a `Draft` of them.
        return self.outer.propose([outer], [Budget(min(budget.nodes, len(outer.drafted)))])[0]

    def _commit(self, state: TwoLevelState, output: VerifyOutput) -> None:
        # The inner one follows with the next draft: most of what the target says it knows by then.
        self.outer.commit([state.outer], [output])

    def _fork(self, state: TwoLevelState) -> TwoLevelState:
        return TwoLevelState(self.outer.fork([state.outer])[0], self._fork_inner(state.inner))

    def inner_draft(self, state: TwoLevelState, nodes: int, stop: Callable[[], bool] | None) -> Draft:
        """Draft with the inner drafter after the outer drafter's text; returns the main path of that draft."""
        if nodes == 0:
            return Draft(DraftTree.empty())
        return main_path(self.inner.propose([self._inner_behind(state.outer, state)], [Budget(nodes, stop=stop)])[0])

    def _inner_behind(self, outer: IndependentState, state: TwoLevelState) -> Any:
        """The inner state after the outer drafter's text: the inner state itself if all is committed, else a fork."""
        if not outer.drafted:
            self._commit_inner(state.inner, outer.committed)
            return state.inner.state
        written = [*outer.committed, *outer.pending]
        if state.trial is None or state.trial.text != written[: len(state.trial.text)]:
            state.trial = self._fork_inner(state.inner)
        self._commit_inner(state.trial, written)
        return state.trial.state

    def _fork_inner(self, inner: InnerState) -> InnerState:
        return InnerState(self.inner.fork([inner.state])[0], [*inner.text])

    def _commit_inner(self, inner: InnerState, text: Sequence[int]) -> None:
        """Commit to the inner state the tokens of `text` that it does not know yet."""
        if len(text) > len(inner.text):
            self.inner.commit([inner.state], [VerifyOutput((), tuple(text[len(inner.text) :]))])
            inner.text = [*text]

    def _write(self, state: TwoLevelState, budget: Budget) -> None:
        """Run the outer model over the inner draft: append the tokens that it accepts, and one of its own."""
        outer = state.outer
        written = [*outer.committed, *outer.pending]
        draft = DraftTree.empty()
        if len(written) > len(outer.fed):  # else only the prompt was read, and its own logits are there already
            most = min(self.ahead, budget.nodes - len(outer.drafted) - 1, self.outer.room(outer))
            draft = readable(self.inner_draft(state, most, budget.stop).tree, self.outer.model.vocab_size)
            self.outer.feed(outer, written, draft.tokens)
        kept = self._verify(outer, draft)
        outer.cache.keep(0, range(kept))
        outer.fed = [*outer.fed, *draft.tokens[:kept]]
        outer.logits = outer.logits[kept:]

    def _verify(self, outer: IndependentState, draft: DraftTree) -> int:
        """Append tokens until the outer model replaces one; returns how many were accepted and read."""
        for node, token in enumerate(draft.tokens):
            row = draft.drawn_from[node]
            q = None if draft.dists is None or row < 0 else draft.dists[row]
            if self._append(outer, outer.logits[node], token, q) != token:
                return node
            if token in self.outer.model.eos:
                return node  # it is accepted, but nothing is read after it, itself neither
        self._append(outer, outer.logits[len(draft)])
        return len(draft)

    def _append(self, outer: IndependentState, logits: Tensor, token: int = -1, dist: Tensor | None = None) -> int:
        """Append `token` if it is accepted, else one from the outer model's logits [V]; returns the appended token.

        `dist` [V] is the distribution that `token` was drawn from, `None` if it was chosen deterministically.
        """
        logits = logits + self.outer.banned
        p = warp(logits, outer.sampling, [*outer.prompt, *outer.committed, *outer.pending])
        q = None
        if token >= 0:
            q = point_mass(token, p) if dist is None else dist.to(p)
        greedy, position = outer.sampling.greedy, len(outer.committed) + len(outer.drafted)
        if greedy or not outer.draws.independent:  # the outer model's own token is known
            taken = int(p.argmax()) if greedy else outer.draws.token(p, position)
            p = p.softmax(-1) if greedy else p
            if q is not None and token != taken and self.accepts(p, token, q):
                taken = token
            prob = math.exp(logits[taken] - logits.logsumexp(-1)) if greedy else float(p[taken])
        else:
            accepted = q is not None and self.accepts(p, token, q)
            q = q if accepted and q is not None else p
            taken = token if accepted else outer.draws.token(q, position)
            prob = float(q[taken])
            outer.dists.append(q)
        outer.drafted.append(TokenAlternatives((taken,), (prob,)))
        return taken


def main_path(draft: Draft) -> Draft:
    """The chain of first children, with its distributions and path probabilities."""
    if draft.tree.is_chain:
        return draft
    path = draft.tree.main_path
    return Draft(draft.tree.keep(path), tuple(draft.path_probs[node] for node in path) if draft.path_probs else ())


def readable(chain: DraftTree, vocabulary: int) -> DraftTree:
    """The beginning of a chain whose ids are below `vocabulary`, with distributions over that many ids."""
    unknown = (node for node, token in enumerate(chain.tokens) if token >= vocabulary)
    return as_wide(chain.first(next(unknown, len(chain))), vocabulary)


def point_mass(token: int, like: Tensor) -> Tensor:
    """[V] distribution with all probability on one token."""
    return F.one_hot(torch.tensor(token, device=like.device), like.shape[-1]).to(like)


class CascadeDrafter(TwoLevelDrafter):
    """`outer` drafts for the target, `inner` for `outer`.

    Vertical cascade: a cheaper drafter drafts for the model, and a still cheaper one may draft for that drafter.
    Horizontal cascade (`early`): the first tokens of a draft count most, because later ones are used only if all before
    them were accepted. So the model drafts the first tokens, and the cheaper drafter alone the rest.

    A draft, up to `early`, is exactly what the model would have drafted alone, in fewer passes, unless `leniency`
    accepts more: it verifies greedily, or by the noise of the request's seed. Where the seed is unknown (`Draws`), the
    model drafts a sampled answer alone: drawn tokens would have to be verified by rejection, whose result has the
    model's own distribution anyway.

    Args:
        outer, inner, ahead: see `TwoLevelDrafter`.
        early: tokens of a draft that `outer` verifies; `inner` alone drafts the later ones. `None` = all.
        leniency: a token is accepted if `outer` finds its own best at most this many times as likely; 1 = its best
            only.

    Raises:
        CrossdraftError: as `TwoLevelDrafter`, or a leniency or `early` below 1.
    """

    def __init__(
        self,
        outer: Drafter[Any],
        inner: Drafter[Any],
        ahead: int = CascadeSettings.ahead,
        early: int | None = None,
        leniency: float = CascadeSettings.leniency,
    ) -> None:
        if not 1 <= leniency < math.inf:
            raise CrossdraftError(f"A cascade's leniency is {leniency}; it must be 1 (exact) or more.")
        if early is not None and early < 1:
            raise CrossdraftError(f"A cascade's early is {early}; it must be 1 or more.")
        super().__init__(outer, inner, lenient(leniency), ahead)
        self.early = early

    def _propose(self, state: TwoLevelState, budget: Budget) -> Draft:
        """The early tokens together, the later ones by the inner drafter alone."""
        if not state.outer.sampling.greedy and state.outer.draws.independent:
            return self.outer.propose([state.outer], [budget])[0]
        if self.early is None or self.early >= budget.nodes:
            return super()._propose(state, budget)
        draft = super()._propose(state, replace(budget, nodes=self.early))
        tokens, eos = draft.tree.tokens, self.outer.model.eos
        ended = len(tokens) < self.early or tokens[-1] in eos or budget.stopped
        likely = math.prod(one.probs[0] for one in state.outer.drafted[: self.early])
        if ended or likely < budget.min_confidence:
            return draft
        later = self.inner_draft(state, min(budget.nodes - self.early, self.outer.room(state.outer)), budget.stop)
        show(later.tree.tokens, budget)
        return joined(draft, later)


class PyramidDrafter(TwoLevelDrafter):
    """`inner` drafts, `outer` (the qualifier, a model between the two in size) accepts by Jensen-Shannon divergence.

    A token is accepted if the distribution it was drawn from is close enough to the qualifier's own,

        JS(p, q) ≤ threshold,   in nats; a token chosen deterministically has a point mass for q,

    and replaced by the qualifier's own token otherwise.

    A token drawn with the noise of the request's seed is chosen deterministically, and the qualifier keeps its own
    choice, too. For a token drawn independently (`Draws`), acceptance does not depend on the token: it is distributed
    as q where p and q are close, else as p, and that distribution goes to the target: `rejection` is then exact. The
    paper verifies fuzzily at the target as well; that is lossy, and happens only with `--rule fuzzy`.

    Args:
        outer, inner, ahead: see `TwoLevelDrafter`.
        threshold: largest Jensen-Shannon divergence in nats, from 0 to below ln 2.

    Raises:
        CrossdraftError: as `TwoLevelDrafter`, or a threshold out of range.
    """

    def __init__(
        self,
        outer: Drafter[Any],
        inner: Drafter[Any],
        ahead: int = PyramidSettings.ahead,
        threshold: float = PyramidSettings.threshold,
    ) -> None:
        if not 0 <= threshold < math.log(2):
            raise CrossdraftError(
                f"A pyramid's threshold is {threshold}; it must be at least 0 and below ln 2 = 0.693."
            )
        super().__init__(outer, inner, close(threshold), ahead)


def lenient(leniency: float) -> Accepts:
    """Accept tokens at most `leniency` times less likely than the likeliest; with 1, ties are rejected too."""

    def accepts(p: Tensor, token: int, q: Tensor) -> bool:
        return leniency > 1 and bool(leniency * p[token] >= p.max())

    return accepts


def close(threshold: float) -> Accepts:
    """Accept any token whose distribution is at most `threshold` away from the qualifier's."""

    def accepts(p: Tensor, token: int, q: Tensor) -> bool:
        return divergence(p, q) <= threshold

    return accepts


def joined(early: Draft, later: Draft) -> Draft:
    """Join two chains, the second after the first.

    >>> draft = joined(Draft(DraftTree.chain([1]), (0.8,)), Draft(DraftTree.chain([2]), (0.5,)))
    >>> draft.tree.tokens, draft.path_probs
    ((1, 2), (0.8, 0.4))
    """
    above = early.path_probs[-1] if early.path_probs else 1.0
    behind = tuple(above * prob for prob in later.path_probs or default_probs(later.tree))
    probs = (*early.path_probs, *behind) if early.path_probs else ()
    return Draft(DraftTree.chain([*early.tree.tokens, *later.tree.tokens]), probs)
