"""The drafter `iid`: a model that draws the children of a node independently, for the rule `kseq` (SpecTr 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class IidSettings:
    """Number of independent draws behind each node."""

    width: Count = 2


def join(parts: "Sequence[Drafter[Any]]", settings: IidSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build a drafter whose trees have independent siblings."""
    from crossdraft.drafters.independent import IndependentDrafter
    from crossdraft_lab.drafters.iid.drafter import IndependentChildrenDrafter

    (drafter,) = parts
    if not isinstance(drafter, IndependentDrafter):
        raise CrossdraftError(
            "The drafter that iid draws trees with must be a model of the target's own vocabulary that drafts token by "
            "token, and runs where iid does, such as event; write iid:event or (iid:event)@process."
        )
    return IndependentChildrenDrafter(drafter.model, settings.width, context.banned)


RECORD = Method(
    "iid", "a model that draws siblings independently, for the rule kseq (iid:event)", "SpecTr: Sun 2023",
    join=join,
    settings=IidSettings, joins=(1, 1), drafts_trees=True, has_network=False, examples=("iid:event",),
)  # fmt: skip
