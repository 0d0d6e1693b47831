"""The drafter `partial`: the target itself over a part of its keys and values (SpecPV: Tan et al. 2025)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class PartialSettings:
    """Numbers of kept blocks of 16 keys: the first, those that match the question best, and the last."""

    sinks: Count = 2
    blocks: Count = 8
    window: Count = 4


def build(spec: Spec, settings: PartialSettings, context: DrafterContext) -> "Drafter[Any]":
    """The target itself over a part of its keys and values."""
    from crossdraft_lab.drafters.partial.drafter import PartialDrafter

    return PartialDrafter(context.load_host(), context.banned, settings)


RECORD = Method(
    "partial", "the target itself over a part of its keys and values (cascade:partial,event)",
    "SpecPV: Tan et al. 2025, lossless here", build,
    settings=PartialSettings, needs_target=True,
)  # fmt: skip
