"""Drafters made of other drafters: `union`, `choose`, `phased`, `fallback`, `cascade`, `pyramid`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Limit, NoSettings

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter

    Parts = Sequence[Drafter[Any]]


@dataclass(frozen=True)
class CascadeSettings:
    """Settings of a cascade: tokens drafted between two passes of the better drafter, tokens it verifies, leniency."""

    ahead: Count = 5
    early: Count | None = None
    leniency: Annotated[float, Limit("1 (exact) or more", lambda value: 1 <= value < math.inf)] = 1.0


@dataclass(frozen=True)
class PyramidSettings:
    """Settings of a pyramid: tokens between two passes of the qualifier; largest divergence, often 0.2 to 0.5."""

    ahead: Count = 5
    threshold: Annotated[float, Limit("at least 0 and below ln 2 = 0.693", lambda value: 0 <= value < math.log(2))] = (
        0.3
    )


def join_union(parts: "Parts", settings: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join drafters to one whose tree is the union of their trees."""
    from crossdraft.drafters.combine.union import UnionDrafter

    return UnionDrafter(parts, context.eos)


def join_choose(parts: "Parts", settings: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join drafters to a bandit that chooses one of them for each answer."""
    from crossdraft.drafters.combine.choose import ChooseDrafter

    return ChooseDrafter(parts)


def join_phased(parts: "Parts", settings: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join two drafters: the first drafts while the target reads, the second afterwards."""
    from crossdraft.drafters.combine.phased import PhasedDrafter

    hidden, later = parts
    return PhasedDrafter(hidden, later)


def join_fallback(parts: "Parts", settings: NoSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join two drafters: the second drafts for requests that the first refuses."""
    from crossdraft.drafters.combine.fallback import FallbackDrafter

    first, other = parts
    return FallbackDrafter(first, other)


def join_cascade(parts: "Parts", settings: CascadeSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join drafters to a cascade, the best one first: each later one drafts for the one before it."""
    from crossdraft.drafters.combine.cascade import CascadeDrafter

    *readers, drafter = parts
    for reader in reversed(readers):
        drafter = CascadeDrafter(reader, drafter, settings.ahead, settings.early, settings.leniency)
    return drafter


def join_pyramid(parts: "Parts", settings: PyramidSettings, context: DrafterContext) -> "Drafter[Any]":
    """Join a qualifier and the drafter whose tokens it accepts or replaces."""
    from crossdraft.drafters.combine.cascade import PyramidDrafter

    qualifier, drafter = parts
    return PyramidDrafter(qualifier, drafter, settings.ahead, settings.threshold)


TWO, MANY = (2, 2), (2, None)
RECORDS = (
    Method(
        "union", "merges several drafters' trees into one", "crossdraft", join=join_union,
        joins=MANY, has_network=False, drafts_trees=True, examples=("union:event,memory", "union:ngram,lookahead"),
    ),
    Method(
        "choose", "a bandit picks one of several for each answer", "UCB1 2002", join=join_choose,
        joins=MANY, has_network=False, drafts_trees=True, examples=("choose:event,memory", "choose:event,memory,ngram"),
    ),
    Method(
        "phased", "one drafter during the target's prefill, another afterwards", "crossdraft",
        join=join_phased, joins=TWO, has_network=False, drafts_trees=True,
        examples=("phased:event,(union:event,memory)", "phased:event,lookahead"),
    ),
    Method(
        "fallback", "one drafter, and another for the requests that it refuses (fallback:glance,eagle2)", "crossdraft",
        join=join_fallback, joins=TWO, has_network=False, drafts_trees=True,
        examples=("fallback:event,memory",),
    ),
    Method(
        "cascade", "a drafter that is itself accelerated by a cheaper one", "CS Drafting: Chen 2023",
        join=join_cascade, settings=CascadeSettings, joins=MANY, has_network=False,
        examples=("cascade:event,memory", "cascade:event,blind,ngram,early=4,leniency=2"),
    ),
    Method(
        "pyramid", "a qualifier model accepts tokens of a cheaper drafter by a fuzzy threshold", "PyramidSD 2025",
        join=join_pyramid, settings=PyramidSettings, joins=TWO, has_network=False,
        examples=("pyramid:event,memory", "pyramid:event,blind"),
    ),
)  # fmt: skip
