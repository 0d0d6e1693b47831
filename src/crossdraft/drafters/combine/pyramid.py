"""The drafter `pyramid`: drafter, qualifier, target (PyramidSD, 2025).

The qualifier, a model between the two in size, reads what the drafter wrote. A word stands if the distribution it was
drawn from is close enough to the qualifier's own, by the measure of the rule `fuzzy`:

    JS(p, q) ≤ threshold,   in nats; a word chosen for certain has a point mass for q.

Where it does not stand, the qualifier puts its own word. What comes out goes to the target.

What is lossy, and what is not: the threshold decides only which draft the target sees. The target judges it by its own
rule, and with an exact one the answer is the target's own. That holds for sampled answers too, because whether a drawn
word stands does not depend on the word: its law is q where the two are close, else p, and that law goes to the target.
The paper judges fuzzily at the target as well; that is lossy, and is had only by naming it: `--rule fuzzy`.
"""

import math
from typing import Any

from torch import Tensor

from crossdraft.drafters.combine.two_level import AHEAD, Keeps, TwoLevelDrafter
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.rules.fuzzy import Fuzzy
from crossdraft.errors import CrossdraftError

THRESHOLD = 0.3  # of the literature's 0.2 to 0.5


class PyramidDrafter(TwoLevelDrafter):
    """`inner` drafts, `outer` qualifies.

    Args:
        outer, inner, ahead: see `TwoLevelDrafter`.
        threshold: largest Jensen-Shannon divergence in nats, from 0 to below ln 2.

    Raises:
        CrossdraftError: as `TwoLevelDrafter`, or a threshold out of range.
    """

    def __init__(
        self, outer: Drafter[Any], inner: Drafter[Any], ahead: int = AHEAD, threshold: float = THRESHOLD
    ) -> None:
        if not 0 <= threshold < math.log(2):
            raise CrossdraftError(
                f"A pyramid's threshold is {threshold}; it must be at least 0 and below ln 2 = 0.693."
            )
        super().__init__(outer, inner, close(threshold), ahead)


def close(threshold: float) -> Keeps:
    """Words whose distribution is at most this far from the qualifier's, whichever they are."""
    fuzzy = Fuzzy(threshold)

    def keeps(p: Tensor, token: int, q: Tensor) -> bool:
        return fuzzy.accepts(p, q)

    return keeps
