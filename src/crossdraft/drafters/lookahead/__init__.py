"""The drafter `lookahead`: n-grams that the target generates in extra rows of its passes (Fu et al. 2024)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class LookaheadSettings:
    """Columns of the window, length of an n-gram, n-grams kept for each first token.

    On a CPU each row of a pass costs; a large GPU has room for 7, 5, 7 and more.
    """

    window: Count = 4
    level: Count = 4
    grams: Count = 4


def build(spec: Spec, settings: LookaheadSettings, context: DrafterContext) -> "Drafter[Any]":
    """Lookahead decoding."""
    from crossdraft.drafters.lookahead.drafter import LookaheadDrafter

    context.read_tokenizer()  # without a target there is nothing to refine
    return LookaheadDrafter(settings.window, settings.level, settings.grams, context.banned)


RECORDS = (
    Method(
        "lookahead", "n-grams that the target generates in extra rows of its passes", "Lookahead: Fu 2024", build,
        settings=LookaheadSettings, drafts_trees=True, has_network=False, probes=True,
    ),
)  # fmt: skip
