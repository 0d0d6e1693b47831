"""Early draft stopping by entropy (AdaEDL: Agrawal et al. 2024).

With H the entropy in nats of the distribution q that a drafted token is taken from,

    1 − √(γ · H(q))

stands for a lower bound of the chance that the target accepts the token. A draft ends after the first token whose bound
is below a threshold λ: that token has cost its pass already, but tokens after it are hardly used. λ follows the
observed acceptance, as in Draft & Verify (Zhang et al. 2023):

    a ← β₁ · a + (1 − β₁) · accepted / drafted
    λ ← λ + (1 − β₂) · ε   if a is below the rate aimed at,
        λ − (1 − β₂) · ε   if it is not, and it was λ that ended the draft.

Exact for sampled answers: q is known before its token is drawn, and neither q nor λ depends on that token or any later
one. No token that was drawn is left out.

Drafting before the target's first token is never stopped: mostly the target is still reading then, and the time costs
nothing.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from crossdraft.specs import Limit

if TYPE_CHECKING:
    from torch import Tensor

RATE_KEPT, THRESHOLD_KEPT = 0.5, 0.9  # β₁, β₂
Bound = Annotated[float, Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Scale = Annotated[float, Limit("a number above 0", lambda value: 0 < value < math.inf)]


@dataclass(frozen=True)
class AdaEDLSettings:
    """Scale of the entropy; the initial threshold, below which a draft ends; the acceptance rate aimed at.

    `step` scales the change of the threshold, a tenth of it each round.
    """

    gamma: Scale = 0.2
    threshold: Bound = 0.6
    acceptance: Bound = 0.9
    step: Bound = 0.01


@dataclass(frozen=True)
class EntropyStop:
    """The rule that ends the drafts of one answer, as an immutable value: updates return a new one.

    Args:
        settings: γ, the rate aimed at, ε.
        threshold: λ.
        rate: a, the acceptance seen; `None` = none yet.
        ended: whether the last drafted token ends the draft.
    """

    settings: AdaEDLSettings
    threshold: float
    rate: float | None = None
    ended: bool = False

    @classmethod
    def of(cls, settings: AdaEDLSettings) -> "EntropyStop":
        """Make the rule with which an answer begins."""
        return cls(settings, settings.threshold)

    def bounds(self, probs: "Tensor") -> list[float]:
        """Lower bounds of the acceptance of tokens taken from distributions [n, V]."""
        from torch.special import entr

        return (1 - (self.settings.gamma * entr(probs.double()).sum(-1)).sqrt()).tolist()

    def after(self, bound: float) -> "EntropyStop":
        """The rule after a token with that bound."""
        return replace(self, ended=bound < self.threshold)

    def verified(self, accepted: int, drafted: int) -> "EntropyStop":
        """Update after a round in which `accepted` of `drafted` tokens were accepted; the next draft begins anew."""
        if not drafted:
            return replace(self, ended=False)
        seen = accepted / drafted
        rate = seen if self.rate is None else RATE_KEPT * self.rate + (1 - RATE_KEPT) * seen
        step = self.settings.step if rate < self.settings.acceptance else -self.settings.step if self.ended else 0.0
        threshold = min(1.0, max(0.0, self.threshold + (1 - THRESHOLD_KEPT) * step))
        return replace(self, threshold=threshold, rate=rate, ended=False)
