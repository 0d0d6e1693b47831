"""A drafter beside an event camera, for a target in the cloud: the frames between them, and both ends of the link."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class EdgeSettings:
    """Settings of an edge; `draws`: trust that tokens are drawn from the distributions it sends, see docs/edge.md."""

    draws: Literal["yes", "no"] = "no"


def build(spec: Spec, settings: EdgeSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter that uses the drafts of the edges that ask."""
    from crossdraft.edge.remote import EdgeDrafter

    return EdgeDrafter(context.vocab_size, draws=settings.draws == "yes")


RECORDS = (
    Method(
        "edge", "whatever drafts at the edge that asks, over the network (crossdraft serve, crossdraft edge)",
        "crossdraft", build, settings=EdgeSettings, drafts_trees=True, needs_target=True,
        has_network=False, examples=(),  # no examples, as they would need an edge
    ),
)  # fmt: skip
