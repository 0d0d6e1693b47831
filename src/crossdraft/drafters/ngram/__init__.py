"""The drafter `ngram`: prompt lookup decoding (Saxena 2023)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class NgramSettings:
    """Longest n-gram that is looked up, and most tokens copied for each token that matched."""

    longest: Count = 4
    copied: Count = 8


def build(spec: Spec, settings: NgramSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the prompt lookup drafter."""
    from crossdraft.drafters.ngram.drafter import NgramDrafter

    return NgramDrafter(settings.longest, settings.copied)


RECORDS = (
    Method(
        "ngram", "copies what followed the same tokens in prompt and answer", "PLD 2023", build,
        settings=NgramSettings, has_network=False,
    ),
)  # fmt: skip
