"""The drafter `event_medusa`: self-speculation of the event drafter with Medusa heads on it.

It reads events alone and needs nothing of the target, so it may draft during the target's prefill. Each pass reads the
last token and, behind it, the tokens that the heads predict, and keeps those that the event model agrees with: the
draft is token-identical to that without heads, in fewer passes. So more of a draft fits into the same prefill.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch

from crossdraft.drafters.base import common_prefix
from crossdraft.drafters.independent import IndependentDrafter, IndependentState
from crossdraft.drafters.short_head import ShortHead
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.event_medusa.network import DrafterMedusa
from crossdraft.heads.glance.frame_encoder import FrameEncoder
from crossdraft.heads.networks.base import SharedWeights


class DrafterMedusaDrafter(IndependentDrafter):
    """Drafts with a model of its own, and heads on it.

    Args:
        model: the event model behind the adapter.
        head: heads over its last feature, on its device.
        banned, words, glance: as in `IndependentDrafter`.

    Raises:
        CrossdraftError: the heads are another model's.
    """

    def __init__(
        self,
        model: Target,
        head: DrafterMedusa,
        banned: Sequence[int] = (),
        *,
        words: int = 1,
        glance: FrameEncoder | None = None,
    ) -> None:
        super().__init__(model, banned, words=words, glance=glance)
        layers = model.text_config.num_hidden_layers
        if head.config.num_layers != layers:
            raise CrossdraftError(
                f"The heads read layer {head.config.num_layers} of an event model, this one has {layers}; train heads "
                "for it."
            )
        self.head = head.eval()
        self.capture = head.reads

    def _candidates(self, state: IndependentState, written: Sequence[int], most: int) -> list[int]:
        old = super()._candidates(state, written, most)
        feature, pending = state.features[len(state.fed)], written[len(state.fed) :]
        foresight = self.head.predict(feature, pending, most, self.model.eos)
        first = next(foresight, None)
        # Old text that the heads begin with too is the likelier to hold to its end, if it is longer than what they can
        # foresee; else it is outvoted.
        furthest = min(most, self.head.config.steps - len(pending) + 1)
        stands = old[:1] == [first] and len(old) > furthest
        prediction = old if first is None or stands else [first, *foresight]
        state.reused = common_prefix(old, prediction)
        return prediction


def shared_weights_of(model: Target) -> SharedWeights:
    """What heads borrow of an event model. Where its own head is cut short, the rows that are gone are 0."""
    embeddings = cast("Any", model.model.get_input_embeddings()).weight.detach()
    head = cast("Any", model.model.get_output_embeddings())
    if not isinstance(head, ShortHead):
        return SharedWeights(embeddings, head.weight.detach())
    whole = torch.zeros_like(embeddings)
    whole[head.rows] = head.inner.weight.detach()
    return SharedWeights(embeddings, whole)
