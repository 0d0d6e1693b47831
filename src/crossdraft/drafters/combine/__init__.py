"""Drafters made of other drafters: `union`, `phased` and `fallback`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crossdraft.records import DrafterContext, Method
from crossdraft.specs import NoSettings

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter

    Parts = Sequence[Drafter[Any]]


def join_union(parts: "Parts", settings: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join drafters to one whose tree is the union of their trees."""
    from crossdraft.drafters.combine.union import UnionDrafter

    return UnionDrafter(parts, context.eos)


def join_phased(parts: "Parts", settings: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join two drafters: the first drafts while the target reads, the second afterwards."""
    from crossdraft.drafters.combine.handover import HandoverDrafter

    return HandoverDrafter(*parts, phased=True)


def join_fallback(parts: "Parts", settings: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join two drafters: the second drafts for requests that the first refuses."""
    from crossdraft.drafters.combine.handover import HandoverDrafter

    return HandoverDrafter(*parts, phased=False)


TWO, MANY = (2, 2), (2, None)
RECORDS = (
    Method(
        "union", "merges several drafters' trees into one", "crossdraft", join=join_union,
        joins=MANY, has_network=False, drafts_trees=True, examples=("union:event,memory", "union:ngram,memory"),
    ),
    Method(
        "phased", "one drafter during the target's prefill, another afterwards", "crossdraft",
        join=join_phased, joins=TWO, has_network=False, drafts_trees=True,
        examples=("phased:event,(union:event,memory)", "phased:event,ngram"),
    ),
    Method(
        "fallback", "one drafter, and another for the requests that it refuses (fallback:glance,eagle2)", "crossdraft",
        join=join_fallback, joins=TWO, has_network=False, drafts_trees=True,
        examples=("fallback:event,memory",),
    ),
)  # fmt: skip
