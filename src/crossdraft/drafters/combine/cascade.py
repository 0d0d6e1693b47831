"""The drafter `cascade`: drafters that draft for one another (cascade speculative drafting, Chen et al. 2023).

Vertical: a small model is itself drafted for by a cheaper drafter, and that one by a cheaper one still; see `overseen`.
Horizontal (`early`): the first tokens of a draft count most, because later ones are used only if all before them were
accepted. So the model writes these, and the cheaper drafter alone writes the rest.

A greedy draft, up to `early`, is exactly what the model would have written alone, in fewer passes, unless `leniency`
lets more stand. For sampled answers the model drafts alone: drawn words would have to be judged by speculative
sampling, and what came of that has the model's own law anyway. Whatever the leniency, the target's rule stays exact.
"""

import math
from dataclasses import replace
from typing import Any

from torch import Tensor

from crossdraft.drafters.combine.two_level import AHEAD, Keeps, TwoLevelDrafter, TwoLevelState, show
from crossdraft.engine.drafter import Budget, Draft, Drafter
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

GUESS = 0.7  # of a later word whose drafter gives no chance, given the one before


class CascadeDrafter(TwoLevelDrafter):
    """`outer` drafts for the target, `inner` for `outer`.

    Args:
        outer, inner, ahead: see `TwoLevelDrafter`.
        early: tokens of a draft that `outer` sees to; `inner` alone writes those behind. `None` = all.
        leniency: a word may stand if `outer` finds its own best at most this many times as likely; 1 = its best only.

    Raises:
        CrossdraftError: as `TwoLevelDrafter`, or a leniency or `early` below 1.
    """

    def __init__(
        self,
        outer: Drafter[Any],
        inner: Drafter[Any],
        ahead: int = AHEAD,
        early: int | None = None,
        leniency: float = 1.0,
    ) -> None:
        if not 1 <= leniency < math.inf:
            raise CrossdraftError(f"A cascade's leniency is {leniency}; it must be 1 (exact) or more.")
        if early is not None and early < 1:
            raise CrossdraftError(f"A cascade's early is {early}; it must be 1 or more.")
        super().__init__(outer, inner, lenient(leniency), ahead)
        self.early = early

    def draft(self, state: TwoLevelState, budget: Budget) -> Draft:
        """The early tokens together, the later ones by the inner drafter alone."""
        if not state.writing.sampling.greedy:
            return self.outer.propose([state.writing], [budget])[0]
        if self.early is None or self.early >= budget.nodes:
            return super().draft(state, budget)
        draft = super().draft(state, replace(budget, nodes=self.early))
        tokens, eos = draft.tree.tokens, self.outer.model.eos
        ended = len(tokens) < self.early or tokens[-1] in eos or budget.stopped
        if ended or draft.path_probs[-1] < budget.min_confidence:
            return draft
        later = self.suggest(state, min(budget.nodes - self.early, self.outer.room(state.writing)), budget.stop)
        show(later.tree.tokens, budget)
        return joined(draft, later)


def lenient(leniency: float) -> Keeps:
    """Words at most `leniency` times less likely than the likeliest; with 1, ties do not stand either."""

    def keeps(p: Tensor, token: int, q: Tensor) -> bool:
        return leniency > 1 and bool(leniency * p[token] >= p.max())

    return keeps


def joined(early: Draft, later: Draft) -> Draft:
    """Two chains, one behind the other.

    >>> draft = joined(Draft(DraftTree.chain([1]), (0.8,)), Draft(DraftTree.chain([2]), (0.5,)))
    >>> draft.tree.tokens, draft.reach
    ((1, 2), (0.8, 0.4))
    """
    above = early.path_probs[-1] if early.path_probs else 1.0
    reach = tuple(above * chance for chance in later.path_probs or [GUESS**depth for depth in later.tree.depths])
    return Draft(DraftTree.chain([*early.tree.tokens, *later.tree.tokens]), (*early.path_probs, *reach))
