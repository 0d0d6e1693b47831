"""Vision layers whose output is not read, replaced by the identity.

LLaVA and its kin take their visual features from an inner layer of the vision encoder (`vision_feature_layer`, mostly
the last but one), and `transformers` computes the layers after it all the same: one of 24 in CLIP's large encoder, one
of 5 in the reference target's. Here such layers return their input. The features are the same, to the bit.
"""

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

ENCODERS = ("vision_tower", "video_tower", "image_tower")


def pass_unread(model: PreTrainedModel) -> int:
    """Let vision layers after the last one that is read return their input, in place; returns the number of them.

    They keep their weights, and their hidden states among the encoder's. Only the encoder's own last state changes. A
    model without `vision_feature_layer` is not changed.
    """
    wanted: Any = getattr(model.config, "vision_feature_layer", None)
    if wanted is None:
        return 0
    count = 0
    for layers in _encoder_layers(model):
        read = _layers_read(len(layers), [wanted] if isinstance(wanted, int) else wanted)
        for index in range(read, len(layers)):
            cast("Any", layers[index]).forward = _hand_on
            count += 1
    return count


def _encoder_layers(model: PreTrainedModel) -> Iterator[nn.ModuleList]:
    """The layers of each vision encoder."""
    for name in ENCODERS:
        encoder: Any = getattr(model.base_model, name, None)
        depth = getattr(getattr(encoder, "config", None), "num_hidden_layers", None)
        if depth is not None:
            lists = (module for module in encoder.modules() if isinstance(module, nn.ModuleList))
            yield from (layers for layers in lists if len(layers) == depth)


def _layers_read(depth: int, wanted: list[int]) -> int:
    """Number of layers that must run for the hidden states `wanted`: 0 = the embeddings, -1 = after the last layer.

    >>> _layers_read(24, [-2]), _layers_read(24, [-1]), _layers_read(24, [0, 5])
    (23, 24, 5)
    """
    return max(index if index >= 0 else depth + 1 + index for index in wanted)


def _hand_on(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Return the hidden states unchanged, in place of a layer's own forward."""
    return hidden_states
