"""The drafter `adaedl`: a model whose draft ends where its entropy is high (AdaEDL: Agrawal et al. 2024)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crossdraft.drafters.entropy_stop import AdaEDLSettings, EntropyStop
from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


def join(parts: "Sequence[Drafter[Any]]", settings: AdaEDLSettings, context: DrafterContext) -> "Drafter[Any]":
    """Give a model's drafter the rule that ends drafts early by entropy."""
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
