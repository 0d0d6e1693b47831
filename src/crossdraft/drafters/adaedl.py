"""The drafter `adaedl`: a model whose draft ends where its entropy is high (AdaEDL: Agrawal et al. 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Limit

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter

Bound = Annotated[float, Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Scale = Annotated[float, Limit("a number above 0", lambda value: 0 < value < math.inf)]


@dataclass(frozen=True)
class AdaEDLSettings:
    """Scale of the entropy; the least bound behind which a draft goes on, at first; the acceptance rate aimed at.

    `step` is how far the least bound is moved, a tenth of it each round.
    """

    gamma: Scale = 0.2
    threshold: Bound = 0.6
    acceptance: Bound = 0.9
    step: Bound = 0.01


def join(parts: "Sequence[Drafter[Any]]", settings: AdaEDLSettings, context: DrafterContext) -> "Drafter[Any]":
    """A model's drafts, ended early by entropy."""
    from crossdraft.drafters.entropy_stop import EntropyStop
    from crossdraft.drafters.independent import IndependentDrafter

    (drafter,) = parts
    if not isinstance(drafter, IndependentDrafter) or drafter.stop is not None:
        raise CrossdraftError(
            "What adaedl ends early must be a model of the target's own vocabulary that drafts token by token, and "
            "runs where adaedl does, such as event or event_medusa; write adaedl:event or (adaedl:event)@process."
        )
    drafter.stop = EntropyStop.of(settings)
    return drafter


RECORDS = (
    Method(
        "adaedl", "a model whose draft ends where its entropy is high (adaedl:event)", "AdaEDL: Agrawal 2024",
        join=join, settings=AdaEDLSettings, joins=(1, 1), has_network=False, examples=("adaedl:event",),
    ),
)  # fmt: skip
