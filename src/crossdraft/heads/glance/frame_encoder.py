"""`FrameEncoder`: the target's visual features of a few frames as keys and values of `glance`'s cross-attention.

Outside the target's process the features come with the request, long before the prefill ends. In the target's process
the frames are encoded here.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from crossdraft.drafters.view import evenly
from crossdraft.engine.request import Request
from crossdraft.engine.target import Prompt, Target, visual_rows
from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.network import Glance
from crossdraft.heads.networks.layers import KeyValue

PIXELS = "pixel_values_videos"  # [1, frames, 3, h, w]


class FrameEncoder:
    """`glance` and its visual features, for `IndependentDrafter`.

    Args:
        glance: the network.
        target: of which only `prepare` and `encode` are used; `None` = the features come with the request, see
            `Needs.visual`.

    Raises:
        CrossdraftError: the target's visual features cannot be computed without its language model.
    """

    def __init__(self, glance: Glance, target: Target | None = None) -> None:
        if target is not None and not target.traits.takes_encoded:
            raise CrossdraftError(
                "This version of transformers does not encode a clip without the language model, which a glance needs; "
                "update transformers."
            )
        self.glance, self.target = glance.eval(), target

    def encode(self, request: Request) -> list[KeyValue]:
        """Keys and values of the frames, a layer each.

        Raises:
            CrossdraftError: the request has no clip, or the target does not encode it frame by frame.
        """
        if self.target is not None:
            prompt = fewer_frames(self.target.prepare(request), self.glance.config.frames)
            return self.glance.keys_values(visual_rows(self.target.encode(prompt)["video"])[None])
        if request.visual_features is None:
            raise CrossdraftError("A glance outside the target's process needs the target's visual features.")
        return self.glance.keys_values(self._of_frames(request.visual_features())[None])

    def _of_frames(self, rows: Tensor) -> Tensor:
        """Of [F · n, E] features of a clip those of the frames that are read."""
        frames, rest = divmod(len(rows), self.glance.config.patches)
        if rest:
            return rows  # which `keys_values` refuses
        chosen = evenly(frames, self.glance.config.frames)
        return rows.unflatten(0, (frames, -1))[chosen].flatten(0, 1)

    def logits(self, features: Tensor, visual: Sequence[KeyValue]) -> Tensor:
        """[n, H] last features of the drafter's model -> [n, V] logits, -inf outside its draft vocabulary."""
        return self.glance.to_full_vocab(self.glance.logits(features[None], visual)[0])


def fewer_frames(prompt: Prompt, count: int) -> Prompt:
    """The prompt with `count` of its frames, evenly spread; its ids are unchanged.

    Raises:
        CrossdraftError: it holds no frames.
    """
    pixels = prompt.features.get(PIXELS)
    if not isinstance(pixels, Tensor) or pixels.ndim != 5:
        raise CrossdraftError(
            "A glance needs a target that encodes a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do."
        )
    chosen = torch.tensor(evenly(pixels.shape[1], count))
    return replace(prompt, features={**prompt.features, PIXELS: pixels[:, chosen]}, items=())
