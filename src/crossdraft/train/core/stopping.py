"""When to stop: the best check so far, and how many have not bettered it."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands with its checks; part of its checkpoint.

    Args:
        best: the best value so far of the figure that is watched; more is better.
        best_step: steps done then; 0 before the first.
        missed: checks since, none of them better.
        checked: steps done at the last check.
    """

    best: float = -math.inf
    best_step: int = 0
    missed: int = 0
    checked: int = 0

    def after(self, step: int, value: float) -> "Standing":
        """The standing after one more check. NaN is no better than any value."""
        if value > self.best:
            return Standing(value, step, 0, step)
        return replace(self, missed=self.missed + 1, checked=step)

    def is_over(self, patience: int) -> bool:
        """True once `patience` checks in a row were no better; a patience of 0 never ends."""
        return 0 < patience <= self.missed


def watched(figures: Mapping[str, float], watch: str) -> float:
    """The figure that is watched, so that more is better; a leading '-' turns it round.

    Raises:
        CrossdraftError: the checks give no such figure; the nearest is suggested.
    """
    name = watch.removeprefix("-")
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(figures) or 'none'}."
        raise CrossdraftError(f"The checks give no figure '{name}', which optim.watch names; {hint}")
    return -figures[name] if watch.startswith("-") else figures[name]
