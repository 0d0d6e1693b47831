"""The drafter `event_medusa`: self-speculation of the event drafter with Medusa heads on it.

It reads events alone and needs nothing from the target, so it may draft during the target's prefill. Each pass of the
event model verifies the tokens that the heads predict: the draft has the same tokens as without heads, in fewer passes.
So more of a draft fits into the same prefill.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch

from crossdraft.drafters.independent import IndependentDrafter, IndependentState
from crossdraft.drafters.short_head import ShortHead
from crossdraft.engine.target import Target
from crossdraft.engine.tree import common_prefix
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
        CrossdraftError: the heads belong to another model.
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
        predicted = self.head.predict(feature, pending, most, self.model.eos)
        first = next(predicted, None)
        # Rejected text that begins with the heads' prediction is likelier to be accepted whole, if it is longer than
        # the heads can predict.
        longest = min(most, self.head.config.steps - len(pending) + 1)
        reuse = old[:1] == [first] and len(old) > longest
        prediction = old if first is None or reuse else [first, *predicted]
        state.reused = common_prefix(old, prediction)
        return prediction


def shared_weights_of(model: Target) -> SharedWeights:
    """Take the weights that heads share with an event model. Rows that a shortened LM head lacks are 0."""
    embeddings = cast("Any", model.model.get_input_embeddings()).weight.detach()
    head = cast("Any", model.model.get_output_embeddings())
    if not isinstance(head, ShortHead):
        return SharedWeights(embeddings, head.weight.detach())
    whole = torch.zeros_like(embeddings)
    whole[head.rows] = head.inner.weight.detach()
    return SharedWeights(embeddings, whole)
