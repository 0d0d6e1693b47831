"""The drafters `cascade` (cascade speculative drafting: Chen et al. 2023) and `pyramid` (PyramidSD 2025).

Both are two-level cascades, see `two_level`; they differ in what the outer drafter accepts. Whatever that is, it
decides only which draft the target sees: the target verifies it by its own rule, and with an exact one the answer is
the target's own.
"""

import math
from dataclasses import replace
from typing import Any

from torch import Tensor

from crossdraft.drafters.base import show
from crossdraft.drafters.combine.two_level import Accepts, TwoLevelDrafter, TwoLevelState
from crossdraft.drafters.settings import CascadeSettings, PyramidSettings
from crossdraft.engine.drafter import Budget, Draft, Drafter
from crossdraft.engine.rules.fuzzy import Fuzzy
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

GUESS = 0.7  # assumed probability of a later token whose drafter gives none, given the one before


class CascadeDrafter(TwoLevelDrafter):
    """`outer` drafts for the target, `inner` for `outer`.

    Vertical cascade: a model is itself drafted for by a cheaper drafter, and that one by a cheaper one still.
    Horizontal cascade (`early`): the first tokens of a draft count most, because later ones are used only if all before
    them were accepted. So the model drafts these, and the cheaper drafter alone the rest.

    A greedy draft, up to `early`, is exactly what the model would have drafted alone, in fewer passes, unless
    `leniency` accepts more. For sampled answers the model drafts alone: drawn tokens would have to be verified by
    speculative sampling, and what came of that has the model's own distribution anyway.

    Args:
        outer, inner, ahead: see `TwoLevelDrafter`.
        early: tokens of a draft that `outer` verifies; `inner` alone drafts those behind. `None` = all.
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
        if not state.outer.sampling.greedy:
            return self.outer.propose([state.outer], [budget])[0]
        if self.early is None or self.early >= budget.nodes:
            return super()._propose(state, budget)
        draft = super()._propose(state, replace(budget, nodes=self.early))
        tokens, eos = draft.tree.tokens, self.outer.model.eos
        ended = len(tokens) < self.early or tokens[-1] in eos or budget.stopped
        if ended or draft.path_probs[-1] < budget.min_confidence:
            return draft
        later = self.inner_draft(state, min(budget.nodes - self.early, self.outer.room(state.outer)), budget.stop)
        show(later.tree.tokens, budget)
        return joined(draft, later)


class PyramidDrafter(TwoLevelDrafter):
    """`inner` drafts, `outer` (the qualifier, a model between the two in size) accepts by the measure of rule `fuzzy`.

    A token is accepted if the distribution it was drawn from is close enough to the qualifier's own,

        JS(p, q) ≤ threshold,   in nats; a token chosen deterministically has a point mass for q,

    and replaced by the qualifier's own token otherwise.

    Lossless for sampled answers too, because whether a drawn token is accepted does not depend on the token: it is
    distributed as q where the two are close, else as p, and that distribution goes to the target. The paper verifies
    fuzzily at the target as well; that is lossy, and is had only by naming it: `--rule fuzzy`.

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
    """Tokens at most `leniency` times less likely than the likeliest; with 1, ties are rejected too."""

    def accepts(p: Tensor, token: int, q: Tensor) -> bool:
        return leniency > 1 and bool(leniency * p[token] >= p.max())

    return accepts


def close(threshold: float) -> Accepts:
    """Tokens whose distribution is at most this far from the qualifier's, whichever they are."""
    fuzzy = Fuzzy(threshold)

    def accepts(p: Tensor, token: int, q: Tensor) -> bool:
        return fuzzy.accepts(p, q)

    return accepts


def joined(early: Draft, later: Draft) -> Draft:
    """Two chains, one behind the other.

    >>> draft = joined(Draft(DraftTree.chain([1]), (0.8,)), Draft(DraftTree.chain([2]), (0.5,)))
    >>> draft.tree.tokens, draft.path_probs
    ((1, 2), (0.8, 0.4))
    """
    above = early.path_probs[-1] if early.path_probs else 1.0
    behind = tuple(above * prob for prob in later.path_probs or [GUESS**depth for depth in later.tree.depths])
    return Draft(DraftTree.chain([*early.tree.tokens, *later.tree.tokens]), (*early.path_probs, *behind))
