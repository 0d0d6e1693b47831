"""The event drafter that foresees its own words: heads on the event model guess what it will say next.

It still reads through its own sense and needs nothing of the target, so it may write while the target reads. Each pass
reads the last word and, behind it, the words foreseen, and keeps as many of them as the event model says itself: what
is drafted is word for word what it drafts without heads, in fewer passes (`independent`). So more of a draft fits into
the same prefill.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch

from crossdraft.drafters.independent import IndependentDrafter, Writing, common_prefix
from crossdraft.drafters.short_head import ShortHead
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.models.heads.base import TargetTables
from crossdraft.models.heads.cross import Cross


class CrossDrafter(IndependentDrafter):
    """Drafts with a model of its own, and heads on it.

    Args:
        model: the event model behind the adapter.
        head: heads over its last feature, on its device.
        banned, words: as in `IndependentDrafter`.

    Raises:
        CrossdraftError: the heads are another model's.
    """

    def __init__(self, model: Target, head: Cross, banned: Sequence[int] = (), *, words: int = 1) -> None:
        super().__init__(model, banned, words=words)
        layers = model.text_config.num_hidden_layers
        if head.config.num_layers != layers:
            raise CrossdraftError(
                f"The heads read layer {head.config.num_layers} of an event model, this one has {layers}; train heads "
                "for it."
            )
        self.head = head.eval()
        self.capture = head.reads

    def _guess(self, state: Writing, written: Sequence[int], most: int) -> list[int]:
        old = super()._guess(state, written, most)
        feature, unread = state.features[len(state.fed)], written[len(state.fed) :]
        foreseen = self.head.foresee(feature, unread, most, self.model.eos)
        # Old text that the heads begin with too is the likelier to hold to its end, and longer; else it is outvoted.
        guess = old if not foreseen or (old[:1] == foreseen[:1] and len(old) > len(foreseen)) else foreseen
        state.quoted = common_prefix(old, guess)
        return guess


def tables_of(model: Target) -> TargetTables:
    """What heads borrow of an event model. Where its own head is cut short, the rows that are gone are 0."""
    embeddings = cast("Any", model.model.get_input_embeddings()).weight.detach()
    head = cast("Any", model.model.get_output_embeddings())
    if not isinstance(head, ShortHead):
        return TargetTables(embeddings, head.weight.detach())
    whole = torch.zeros_like(embeddings)
    whole[head.rows] = head.inner.weight.detach()
    return TargetTables(embeddings, whole)
